//! From a body to what placing it needs: the scan, and the prompt's chain.

use crate::core::prefix::chain::{self, Blocks, Root};
use crate::openai::{self, BadJson, Part, Recipe, Scratch, Shape, Sink, Splice, splice_ids, splice_usage};
use crate::router::{Ask, Kind, Router};
use smallvec::SmallVec;

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
    /// What must be added, in the order of the places, so that the stream tells what is needed of it.
    pub splices: SmallVec<[Splice; 2]>,
    /// Where a key could be added to it as the first one, for a shape of which engines take more keys than the client
    /// knows.
    pub inside: Option<usize>,
    /// The client didn't ask for usage, but the router did: that event is taken out again.
    pub strip: bool,
    /// How to continue the stream, if it was asked whether that can be done, and it can.
    pub recipe: Option<Recipe>,
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
        self.read_for(shape, body, |_| false)
    }

    /// Reads one body; `resumable` says whether streams of its model are to be continued where they break.
    ///
    /// # Errors
    /// It isn't a JSON object; the error says where.
    pub fn read_for(
        &mut self,
        shape: Shape,
        body: &[u8],
        resumable: impl FnOnce(Option<&str>) -> bool,
    ) -> Result<Prompt, BadJson> {
        self.blocks.clear();
        let scan = openai::scan(shape, body, &mut Chain(&mut self.blocks), &mut self.scratch)?;
        let root = Root {
            model: scan.model.as_deref().unwrap_or_default(),
            lora: None,
            cache_salt: scan.cache_salt.as_deref(),
        };
        let mut chain = Vec::new();
        let head = self.blocks.chain_into(&root, &mut chain);
        let open = matches!(shape, Shape::Chat | Shape::Completions) && self.blocks.bytes() > 0;
        let inside = open.then_some(scan.inside);
        let usage = splice_usage(&scan);
        let strip = usage.is_some();
        let recipe = if resumable(scan.model.as_deref()) { Recipe::read(&scan, body) } else { None };
        let ids = recipe.as_ref().is_some_and(Recipe::asks_for_ids).then(|| splice_ids(&scan));
        // The first stands behind the body's brace, so whatever else there is stands behind it.
        let splices = ids.into_iter().chain(usage).collect();
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
        Ok(Prompt { ask, stream: scan.stream, splices, inside, strip, recipe, salt })
    }
}

impl PromptReader {
    /// Reads the first part of a body that is too long to be read: its parameters as far as they come before the cut, and
    /// its bytes as they are for a prompt. So the next turn of a conversation, which begins with the same bytes, finds its
    /// way back, as long as its client writes JSON the way it did before.
    pub fn read_start(&mut self, shape: Shape, part: &[u8]) -> Prompt {
        self.blocks.clear();
        let start = openai::scan_start(shape, part);
        self.blocks.mark(chain::Part::Other(b"start"));
        self.blocks.push(part);
        let root = Root { model: start.model.as_deref().unwrap_or_default(), lora: None, cache_salt: None };
        let mut chain = Vec::new();
        let head = self.blocks.chain_into(&root, &mut chain);
        let ask = Ask {
            chain,
            head: head.0,
            text_bytes: self.blocks.bytes(),
            max_output: start.max_tokens,
            choices: 1,
            generates: true,
            streams: start.stream,
            model: start.model,
            ..Ask::default()
        };
        Prompt {
            ask,
            stream: start.stream,
            splices: SmallVec::new(),
            inside: None,
            strip: false,
            recipe: None,
            salt: None,
        }
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
