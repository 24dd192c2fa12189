//! Where the prompt of a request goes while it is scanned.

/// A thing that is not text but stands in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Media {
    /// A picture.
    Image,
    /// A sound.
    Audio,
    /// A film.
    Video,
    /// A document.
    File,
}

/// What the text that follows is, or a whole part that has no text.
///
/// Names and roles are decoded text, at most [`MAX_NAME`] bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part<'a> {
    /// Tool definitions as JSON without white space.
    Tools,
    /// A message begins. System prompts of all shapes come as the role `system`.
    Role(&'a [u8]),
    /// The participant's name within its role.
    Name(&'a [u8]),
    /// A text part.
    Text,
    /// What the model thought in an earlier turn.
    Reasoning,
    /// Media, by the hash of its reference: the URL, the identifier, or the data itself. No text follows.
    Media(Media, u128),
    /// A call of the tool of that name; the arguments follow.
    ToolCall(&'a [u8]),
    /// What a tool answered; its parts follow.
    ToolResult,
    /// Token ids instead of text; they follow as four bytes each, little endian, so that 64 of them are as long as a
    /// block of the text chain.
    Tokens,
    /// Something that the model may read but the router doesn't know, as JSON without white space.
    Other,
}

/// Roles and names are cut after so many bytes: no engine takes longer ones.
pub const MAX_NAME: usize = 256;

/// Takes the prompt, in the order in which a chat template shows it to the model.
pub trait Sink {
    /// A new part begins.
    fn part(&mut self, part: Part<'_>);
    /// A run of the current part's text. Where it is cut means nothing.
    fn text(&mut self, run: &[u8]);
}

/// Takes nothing, for callers who only want the parameters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore;

impl Sink for Ignore {
    fn part(&mut self, _: Part<'_>) {}
    fn text(&mut self, _: &[u8]) {}
}
