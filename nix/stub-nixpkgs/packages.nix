# Packages of one system. Names and arguments are those of nixpkgs; a package is a folder bin/ of host tools.
{
  lib,
  host,
  system,
}:

let
  binPath = packages: builtins.concatStringsSep ":" (map (package: "${package}/bin") packages ++ [ "/usr/bin:/bin" ]);

  runCommand =
    name: attributes: script:
    derivation (
      removeAttrs attributes [ "nativeBuildInputs" ]
      // {
        inherit name system;
        builder = "/bin/sh";
        args = [
          "-e"
          "-c"
          script
        ];
        PATH = binPath (attributes.nativeBuildInputs or [ ]);
      }
    );

  writeShellScriptBin =
    name: text:
    runCommand name { script = "#!/bin/bash\n${text}"; } ''
      mkdir -p $out/bin
      printf '%s' "$script" >$out/bin/${name}
      chmod 755 $out/bin/${name}
    '';

  # A tool that this machine lacks stays in the interface and says so when it is run.
  hostTool =
    name:
    if builtins.pathExists "${host}/bin/${name}" then
      runCommand "host-${name}" { } ''
        mkdir -p $out/bin
        cp ${host}/bin/${name} $out/bin/${name}
      ''
    else
      writeShellScriptBin name ''
        echo "${name}: not on this machine, and the stub of nixpkgs has no other" >&2
        exit 127
      '';

  # The host's Python has whatever scripts/setup --dev installed, so the choice of packages is only evaluated.
  python =
    hostTool "python3"
    // {
      withPackages =
        choose: builtins.seq (builtins.length (choose pythonPackages)) (hostTool "python3");
    };

  pythonPackages = lib.genAttrs (builtins.fromJSON (builtins.readFile ./python-packages.json)) (name: name);

  tools = lib.genAttrs [
    "buildah"
    "git"
    "hadolint"
    "nixfmt"
    "pre-commit"
    "ruff"
    "shellcheck"
    "shfmt"
    "skopeo"
    "uv"
    "yamllint"
  ] hostTool;
in
tools
// {
  inherit lib runCommand writeShellScriptBin;

  python312 = python;
  python313 = python;
  zlib = hostTool "zlib";
  stdenv.cc.cc.lib = hostTool "libstdcxx";

  # What `nix develop` starts; it asks without nix/offline's inputs.
  bashInteractive = runCommand "bash" { } ''
    mkdir -p $out/bin
    ln -s /bin/bash $out/bin/bash
  '';

  # `nix develop` accepts no builder but bash.
  mkShell =
    { packages }:
    derivation {
      inherit system;
      name = "shell";
      outputs = [ "out" ];
      builder = "/bin/bash";
      args = [
        "-c"
        "/bin/touch $out"
      ];
      PATH = binPath packages;
    };

  # Nix itself checks what it copies, as it would check a download.
  fetchPypi =
    {
      pname,
      version,
      format,
      dist,
      python,
      abi,
      platform,
      sha256,
    }:
    let
      name = "${pname}-${version}-${python}-${abi}-${platform}.whl";
    in
    derivation {
      inherit name system;
      builder = "/bin/sh";
      args = [
        "-e"
        "-c"
        "/bin/cp /wheelhouse/${name} $out"
      ];
      outputHashAlgo = "sha256";
      outputHashMode = "flat";
      outputHash = sha256;
    };
}
