//! `include/quietline.h` is the header that cbindgen generates. `QUIETLINE_HEADER=write` writes it.

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    #[test]
    fn the_header_is_that_of_the_sources() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a config");
        let mut builder = cbindgen::Builder::new().with_config(config);
        for module in ["stack", "port", "socket", "transfer", "events"] {
            builder = builder.with_src(folder.join(format!("src/{module}.rs")));
        }
        let mut generated = Vec::new();
        builder.generate().expect("valid sources").write(&mut generated);
        let generated = String::from_utf8(generated).expect("text");
        let path = folder.join("include/quietline.h");
        if std::env::var_os("QUIETLINE_HEADER").is_some() {
            return fs::write(path, generated).expect("a file");
        }
        let committed = fs::read_to_string(path).expect("the header");
        assert!(
            committed == generated,
            "include/quietline.h differs from the sources: run QUIETLINE_HEADER=write cargo test \\\n\
             -p quietline-capi --test header"
        );
    }
}
