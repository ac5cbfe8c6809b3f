# The project's own files, cut down to what each output reads, so that an edit elsewhere rebuilds nothing.
let
  root = ../.;

  startsWith = prefix: path: builtins.substring 0 (builtins.stringLength prefix) path == prefix;

  # Under `folders` or on the way to one of them; bytecode would make the same source differ.
  selects =
    folders: path: type:
    let
      relative = builtins.substring (builtins.stringLength (toString root) + 1) (-1) path;
      inside = folder: relative == folder || startsWith "${folder}/" relative;
      above = folder: type == "directory" && startsWith "${relative}/" folder;
      wanted = builtins.any (folder: inside folder || above folder) folders;
    in
    wanted && baseNameOf path != "__pycache__";

  select =
    name: folders:
    builtins.path {
      inherit name;
      path = root;
      filter = selects folders;
    };

  # decideploy finds recipes, locks and patches two folders above its package.
  package = [
    "build"
    "patches"
    "src"
  ];
in
{
  readLock = name: builtins.fromJSON (builtins.readFile (root + "/build/locks/${name}.json"));

  source = select "decideploy-source" package;

  tree = select "decideploy-tree" (
    package
    ++ [
      "LICENSE"
      "NOTICE"
      "README.md"
      "flake.nix"
      "nix"
      "pyproject.toml"
      "scripts"
      "tests"
    ]
  );
}
