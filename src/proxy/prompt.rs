//! From a body to what placing it needs: the scan, and the prompt's chain.

use crate::core::prefix::chain::{self, Blocks, Root};
use crate::openai::{self, BadJson, Part, Scratch, Shape, Sink, Splice, splice_usage};
use crate::router::{Ask, Kind, Router};

/// Reads bodies; keeps its buffers from one to the next.
pub struct PromptReader {
    blocks: Blocks,
    scratch: Scratch,
}

/// What a body asks for.
#[derive(Debug)]
pub struct Prompt {
    /// For the router.
    pub ask: Ask,
    /// Is the answer to be a stream?
    pub stream: bool,
    /// What must be added so that the stream ends with its usage; that event is then taken out again.
    pub splice: Option<Splice>,
    /// Where a key could be added to it as the first one, for a shape of which engines take more keys than the client
    /// knows.
    pub inside: Option<usize>,
    /// The prompt's salt, which its exact chain needs too.
    pub salt: Option<String>,
}

impl PromptReader {
    /// A reader whose chains are those of `router`.
    pub fn new(router: &Router) -> Self {
        PromptReader {
            blocks: Blocks::new(router.chain_seed(), router.block_bytes()),
            scratch: Scratch::default(),
        }
    }

    /// Reads one body.
    ///
    /// # Errors
    /// It isn't a JSON object; the error says where.
    pub fn read(&mut self, shape: Shape, body: &[u8]) -> Result<Prompt, BadJson> {
        self.blocks.clear();
        let scan = openai::scan(shape, body, &mut Chain(&mut self.blocks), &mut self.scratch)?;
        let root = Root {
            model: scan.model.as_deref().unwrap_or_default(),
            lora: None,
            cache_salt: scan.cache_salt.as_deref(),
        };
        let mut chain = Vec::new();
        let head = self.blocks.chain_into(&root, &mut chain);
        let splice = splice_usage(&scan);
        let open = matches!(shape, Shape::Chat | Shape::Completions) && self.blocks.bytes() > 0;
        let inside = open.then_some(scan.inside);
        let stream = scan.stream;
        let salt = root.cache_salt.map(str::to_owned);
        let ask = Ask {
            chain,
            head: head.0,
            text_bytes: self.blocks.bytes() + self.blocks.mark_bytes(),
            max_output: scan.max_tokens,
            choices: scan.n.saturating_mul(scan.prompts.max(1)),
            generates: true,
            streams: scan.stream,
            model: scan.model.map(|m| m.into_owned()),
            previous_response: scan.previous_response_id.map(|id| id.into_owned()),
            ..Ask::default()
        };
        Ok(Prompt { ask, stream, splice, inside, salt })
    }
}

/// The bodies that become token ids by a model's own files.
pub fn tokenized(shape: Shape) -> Option<Kind> {
    match shape {
        Shape::Chat => Some(Kind::Chat),
        Shape::Completions => Some(Kind::Completion),
        Shape::Responses | Shape::Messages => None,
    }
}

/// Hands the prompt's parts on to the chain.
struct Chain<'a>(&'a mut Blocks);

impl Sink for Chain<'_> {
    fn part(&mut self, part: Part<'_>) {
        let blocks = &mut *self.0;
        match part {
            Part::Tools => blocks.mark(chain::Part::Tools),
            Part::Role(role) => blocks.mark(chain::Part::Role(role)),
            Part::Text => blocks.mark(chain::Part::Text),
            Part::ToolCall(name) => blocks.mark(chain::Part::ToolCall(name)),
            Part::Name(name) => {
                blocks.mark(chain::Part::Other(b"name"));
                blocks.mark(chain::Part::Other(name));
            }
            Part::Media(kind, hash) => {
                blocks.mark(chain::Part::Other(&[kind as u8]));
                blocks.mark(chain::Part::Image(&hash.to_le_bytes()));
            }
            Part::Reasoning => blocks.mark(chain::Part::Other(b"reasoning")),
            Part::ToolResult => blocks.mark(chain::Part::Other(b"result")),
            Part::Tokens => blocks.mark(chain::Part::Other(b"tokens")),
            Part::Other => blocks.mark(chain::Part::Other(b"other")),
        }
    }

    fn text(&mut self, run: &[u8]) {
        self.0.push(run);
    }
}
