//! Text filled into lines of a width, broken between words. A word that is longer than a line is left whole: the terminal
//! wraps it, and whoever copies it gets all of it.

/// Lines that are being filled.
pub(super) struct Fill {
    text: String,
    at: usize,
    width: usize,
    /// The line has a word.
    begun: bool,
}

impl Fill {
    pub(super) const fn new(width: usize) -> Self {
        Self { text: String::new(), at: 0, width, begun: false }
    }

    /// A new line that begins `indent` columns in.
    fn newline(&mut self, indent: usize) {
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        self.at = indent;
        self.begun = false;
    }

    /// Adds a text word by word; lines after the first begin `indent` columns in.
    pub(super) fn text(&mut self, text: &str, indent: usize) {
        for (index, word) in text.split(' ').enumerate() {
            let (columns, space) = (word.chars().count(), usize::from(index > 0));
            if index > 0 && self.at + space + columns > self.width && self.begun {
                self.newline(indent);
            } else if index > 0 {
                self.text.push(' ');
                self.at += 1;
            }
            self.text.push_str(word);
            self.at += columns;
            self.begun = true;
        }
    }

    /// Adds a field of several, two columns after the one before; on a new line when it does not fit beside it.
    pub(super) fn field(&mut self, text: &str) {
        if self.at > 0 && self.at + 2 + text.chars().count() > self.width {
            self.newline(2);
        } else if self.at > 0 {
            self.text.push_str("  ");
            self.at += 2;
        }
        self.text(text, 4);
    }

    pub(super) fn end(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str, width: usize) -> String {
        let mut fill = Fill::new(width);
        fill.text(text, 2);
        fill.end()
    }

    #[test]
    fn lines_are_broken_between_words_and_none_is_lost() {
        assert_eq!(filled("two kinds of witness agree", 12), "two kinds of\n  witness\n  agree");
        assert_eq!(filled("fits", 12), "fits");
    }

    #[test]
    fn a_word_longer_than_a_line_stays_whole() {
        let id = "01890000-0000-7000-8000-000000000000";
        assert_eq!(filled(&format!("a {id} b"), 12), format!("a\n  {id}\n  b"));
    }
}
