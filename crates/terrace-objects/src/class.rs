//! Storage classes. An object's record contains the class that the client named, and lifecycle
//! rules change it. It does not affect where a value is stored: size and reads decide that.

use terrace::Attributes;

/// The attribute with an object's class, absent for the standard class. Its name is the header's.
pub const STORAGE_CLASS: &str = "x-amz-storage-class";

/// A class whose objects can be read immediately. Lifecycle rules move objects to later ones only,
/// in S3's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The default.
    Standard,
    /// `REDUCED_REDUNDANCY`
    ReducedRedundancy,
    /// `STANDARD_IA`
    StandardIa,
    /// `INTELLIGENT_TIERING`
    IntelligentTiering,
    /// `ONEZONE_IA`
    OneZoneIa,
    /// `GLACIER_IR`
    GlacierIr,
}

impl Class {
    const ALL: [Self; 6] = [
        Self::Standard,
        Self::ReducedRedundancy,
        Self::StandardIa,
        Self::IntelligentTiering,
        Self::OneZoneIa,
        Self::GlacierIr,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "STANDARD",
            Self::ReducedRedundancy => "REDUCED_REDUNDANCY",
            Self::StandardIa => "STANDARD_IA",
            Self::IntelligentTiering => "INTELLIGENT_TIERING",
            Self::OneZoneIa => "ONEZONE_IA",
            Self::GlacierIr => "GLACIER_IR",
        }
    }

    /// The class of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Reads an object's attributes.
    pub fn of(attributes: &Attributes) -> Self {
        let named = attributes.get_str(STORAGE_CLASS).and_then(Self::parse);
        named.unwrap_or(Self::Standard)
    }

    /// The attribute's value; `None` for the standard class.
    pub fn stored(self) -> Option<&'static str> {
        (self != Self::Standard).then(|| self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for class in Class::ALL {
            assert_eq!(Class::parse(class.name()), Some(class));
            let attributes = class
                .stored()
                .map_or_else(Attributes::new, |name| Attributes::new().with(STORAGE_CLASS, name));
            assert_eq!(Class::of(&attributes), class);
        }
        for name in ["", "standard", "GLACIER", "DEEP_ARCHIVE", "EXPRESS_ONEZONE"] {
            assert_eq!(Class::parse(name), None);
        }
        assert!(Class::Standard < Class::StandardIa && Class::OneZoneIa < Class::GlacierIr);
    }
}
