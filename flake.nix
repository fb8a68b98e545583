# `nix run .`, `nix build .`, `nix develop`. Builds from the source with the Rust of nixpkgs, which must be as new as Cargo.toml
# asks for. There is no flake.lock yet: Nix writes one the first time.
{
  description = "Runs language models straight from their files";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      manifest = builtins.fromTOML (builtins.readFile ./Cargo.toml);
    in
    {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "alight";
          version = manifest.workspace.package.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          cargoBuildFlags = [ "-p" "alight" "-p" "rusage" "--bin" "alight" "--bin" "rusage" ];
          # They need the models that `make test` fetches.
          doCheck = false;
          ALIGHT_COMMIT = self.shortRev or "unknown";
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/alight man -o man
            installManPage man/*
            installShellCompletion --cmd alight \
              --bash <($out/bin/alight completions bash) \
              --zsh <($out/bin/alight completions zsh) \
              --fish <($out/bin/alight completions fish)
          '';
          meta = {
            description = "Runs language models straight from their files";
            license = with pkgs.lib.licenses; [ asl20 mit ];
            mainProgram = "alight";
            platforms = systems;
          };
        };
      });

      devShells = each (pkgs: {
        default = pkgs.mkShell {
          packages = [ pkgs.cargo pkgs.clippy pkgs.rustc pkgs.rustfmt pkgs.python3 pkgs.gnumake ];
        };
      });
    };
}
