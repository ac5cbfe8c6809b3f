# `nix develop`: what scripts/ and the hooks ask for. Python packages come from build/locks by scripts/setup.
{
  pkgs,
  decideploy,
  formatter,
}:

rec {
  packages = [
    decideploy
    formatter
    pkgs.buildah
    pkgs.git
    pkgs.hadolint
    pkgs.nixfmt
    pkgs.pre-commit
    pkgs.python312
    pkgs.ruff
    pkgs.shellcheck
    pkgs.shfmt
    pkgs.skopeo
    pkgs.uv
    pkgs.yamllint
  ];

  shell = pkgs.mkShell { inherit packages; };
}
