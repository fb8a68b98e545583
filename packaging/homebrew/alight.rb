# `make dist DIST_URL=…` writes this file with the address, the version and the hashes of a release.
class Alight < Formula
  desc "Runs language models straight from their files"
  homepage "https://release.invalid"
  version "@VERSION@"
  license any_of: ["Apache-2.0", "MIT"]

  depends_on :linux

  on_linux do
    on_intel do
      url "https://release.invalid/alight-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@x86_64-unknown-linux-musl@"
    end
    on_arm do
      url "https://release.invalid/alight-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@aarch64-unknown-linux-musl@"
    end
  end

  def install
    bin.install "bin/alight", "bin/rusage"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/completions/bash/alight"
    zsh_completion.install "share/completions/zsh/_alight"
    fish_completion.install "share/completions/fish/alight.fish"
    doc.install "README.md", "THIRD-PARTY-LICENSES.txt", "sbom.cdx.json"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/alight --version")
    (testpath/"bad.gguf").write "no model"
    shell_output("#{bin}/alight inspect #{testpath}/bad.gguf 2>&1", 1)
  end
end
