# The flake's outputs. Each file beside this one makes one kind of them; nix/checks.nix has a check for each.
{ nixpkgs }:

let
  # The wheels hold x86_64 code; repacking them, and all the rest, works on either system.
  systems = [
    "x86_64-linux"
    "aarch64-linux"
  ];

  project = import ./project.nix;

  outputsFor =
    system:
    let
      pkgs = nixpkgs.legacyPackages.${system};
      recipes = import ./recipes.nix { inherit pkgs project; };
      decideploy = import ./decideploy.nix { inherit pkgs project; };
      apps = import ./apps.nix { inherit pkgs decideploy; };
      formatter = import ./formatter.nix { inherit pkgs; };
      develop = import ./shell.nix { inherit pkgs decideploy formatter; };
    in
    {
      inherit apps formatter;
      packages = {
        inherit decideploy;
        default = decideploy;
        vllm-wheel-cpu = recipes.cpu.wheel;
        vllm-wheel-cuda = recipes.cuda.wheel;
      };
      devShells.default = develop.shell;
      checks = import ./checks.nix {
        inherit
          pkgs
          project
          recipes
          decideploy
          apps
          formatter
          develop
          ;
      };
    };

  outputs = nixpkgs.lib.genAttrs systems outputsFor;
  perSystem = kind: nixpkgs.lib.genAttrs systems (system: outputs.${system}.${kind});
in
nixpkgs.lib.genAttrs [
  "apps"
  "checks"
  "devShells"
  "formatter"
  "packages"
] perSystem
