# `nix run .#verify`, `.#probe`, `.#plan` and `.#serve`.
{ pkgs, decideploy }:

let
  app = name: script: {
    type = "app";
    program = "${pkgs.writeShellScriptBin name script}/bin/${name}";
  };

  verb = name: app "decideploy-${name}" ''exec ${decideploy}/bin/decideploy ${name} "$@"'';

  # Registry wheels look for these in the system's folders, which a Python of nixpkgs does not search.
  libraries = pkgs.lib.makeLibraryPath [
    pkgs.stdenv.cc.cc.lib
    pkgs.zlib
  ];
in
{
  verify = verb "verify";
  probe = verb "probe";
  plan = verb "plan";

  # Serving takes vLLM's compiled dependencies from the hashed locks, so it runs in a checkout.
  # Only 3.12 suits both recipes.
  serve = app "decideploy-serve" ''
    if [ ! -x scripts/serve ]; then
      echo "serve: there is no scripts/serve here; run it in a checkout of decideploy" >&2
      exit 2
    fi
    export DECIDEPLOY_PYTHON=''${DECIDEPLOY_PYTHON:-${pkgs.python312}/bin/python3}
    export LD_LIBRARY_PATH=${libraries}:/run/opengl-driver/lib''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    exec scripts/serve "$@"
  '';
}
