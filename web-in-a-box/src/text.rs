//! Words, titles and paragraphs.

use crate::random::Random;

pub(crate) const WORDS: &[&str] = &[
    "amber", "anchor", "apple", "archive", "aurora", "autumn", "bamboo", "beacon", "birch", "breeze",
    "bridge", "brook", "canyon", "castle", "cedar", "circle", "clover", "cobalt", "comet", "copper", "coral",
    "cotton", "crater", "crystal", "delta", "desert", "echo", "ember", "falcon", "fern", "field", "flint",
    "forest", "fossil", "galaxy", "garden", "glacier", "granite", "harbor", "hazel", "heron", "hollow",
    "island", "ivory", "jasper", "juniper", "kettle", "lagoon", "lantern", "laurel", "library", "linen",
    "lotus", "maple", "marble", "meadow", "mirror", "monsoon", "nectar", "oasis", "olive", "onyx", "orchard",
    "otter", "paper", "pebble", "pepper", "pine", "planet", "prairie", "quarry", "quartz", "raven", "reef",
    "ribbon", "river", "rocket", "saffron", "sail", "sequoia", "shadow", "silver", "sparrow", "spruce",
    "stone", "summit", "sunset", "thistle", "thunder", "timber", "tulip", "valley", "velvet", "violet",
    "walnut", "willow", "winter", "zephyr",
];

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

pub(crate) fn title(random: &mut Random) -> String {
    let words: Vec<&str> = (0..2 + random.below(3)).map(|_| random.pick(WORDS)).collect();
    capital(&words.join(" "))
}

pub(crate) fn paragraph(random: &mut Random) -> String {
    let sentences: Vec<String> = (0..2 + random.below(4))
        .map(|_| {
            let words: Vec<&str> = (0..5 + random.below(12)).map(|_| random.pick(WORDS)).collect();
            format!("{}.", capital(&words.join(" ")))
        })
        .collect();
    sentences.join(" ")
}
