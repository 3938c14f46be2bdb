//! Compiles the shims of the rivals that are system libraries. Does nothing without their features.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rival-leveldb")]
    {
        shim("leveldb.cc", true);
        println!("cargo:rustc-link-lib=leveldb");
    }
    #[cfg(feature = "rival-berkeley-db")]
    {
        shim("berkeley_db.c", false);
        println!("cargo:rustc-link-lib=db-5.3");
    }
}

/// The library's own flag must come after this one, so that the linker finds the symbols that the
/// shim uses.
#[cfg(any(feature = "rival-leveldb", feature = "rival-berkeley-db"))]
fn shim(file: &str, is_cpp: bool) {
    let directory = "src/rivals/foreign";
    let source = format!("{directory}/{file}");
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed={directory}/rival.h");
    let mut build = cc::Build::new();
    build
        .file(source)
        .include(directory)
        .warnings(true)
        .extra_warnings(true);
    if is_cpp {
        build.cpp(true).std("c++17");
    } else {
        // db.h uses type names that strict C lacks.
        build.std("gnu11");
    }
    build.compile(&format!("rival_{}", file.replace('.', "_")));
}
