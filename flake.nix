{
  description = "Build, verify, plan, serve and prove a patched vLLM for decision models";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }: import ./nix { inherit nixpkgs; };
}
