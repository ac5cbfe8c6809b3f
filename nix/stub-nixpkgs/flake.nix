# Stands in for nixpkgs where that cannot be had: the part of its interface that nix/ uses, over the host's tools.
# nix/offline makes `host`, a folder bin/ with one script for each tool that this machine has; ./host has none.
{
  inputs.host = {
    url = "path:./host";
    flake = false;
  };

  outputs =
    { self, host }:
    let
      genAttrs =
        names: make:
        builtins.listToAttrs (
          map (name: {
            inherit name;
            value = make name;
          }) names
        );

      makeLibraryPath = packages: builtins.concatStringsSep ":" (map (package: "${package}/lib") packages);

      lib = { inherit genAttrs makeLibraryPath; };
    in
    {
      inherit lib;
      legacyPackages = genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ] (system: import ./packages.nix { inherit lib host system; });
    };
}
