# `nix fmt`: nixfmt over the flake; with --check it changes nothing and fails on a file it would change.
{ pkgs }:

pkgs.writeShellScriptBin "decideploy-nixfmt" ''
  options=
  if [ "$1" = --check ]; then options=--check; fi
  exec ${pkgs.nixfmt}/bin/nixfmt $options flake.nix nix/*.nix nix/*/*.nix
''
