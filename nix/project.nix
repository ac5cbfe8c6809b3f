# The project's own files: all of them for checks, and for outputs what they read, lest an edit elsewhere rebuild them.
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
in
{
  readLock = name: builtins.fromJSON (builtins.readFile (root + "/build/locks/${name}.json"));

  # decideploy finds recipes, locks and patches two folders above its package.
  source = select "decideploy-source" [
    "build"
    "patches"
    "src"
  ];

  # Import order depends on what else lies in the tree, so linters get all of it.
  tree = builtins.path {
    name = "decideploy-tree";
    path = root;
  };
}
