//! A prompt that comes from a file gives the answer that it gives without, bit for bit; a file that is of no use, for whatever reason, costs
//! nothing but its time.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_kernels::Isa;
use alight_model::spec::Mixer;
use alight_model::{
    AdapterSet, Engine, EngineOptions, Event, KvType, Model, ModelError, OpenOptions, Precision,
    PromptFileError, PromptFolder, PromptWriteError, Repack, Request, Restored, Session,
    SessionOptions,
};

use alight_testing::models::{self, Spec, tokens};

fn open(path: &Path) -> Model {
    Model::open(path, &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() })
        .unwrap()
}

fn session(model: &Model) -> Session<'_> {
    Session::new(model, &SessionOptions::default()).unwrap()
}

fn folder(of: &tempfile::TempDir) -> PromptFolder {
    PromptFolder::new(of.path().join("prompts"), u64::MAX)
}

/// The logits after the prompt and after some tokens that are decoded, in bits.
fn answer(session: &mut Session<'_>, prompt: &[u32], from: usize) -> Vec<u32> {
    let mut all = Vec::new();
    let mut logits = session.feed(&prompt[from..]).unwrap().to_vec();
    for token in [5, 9, 200] {
        all.extend(logits.iter().map(|x| x.to_bits()));
        logits = session.decode(token).unwrap().to_vec();
    }
    all.extend(logits.iter().map(|x| x.to_bits()));
    all
}

fn cold(model: &Model, prompt: &[u32]) -> Vec<u32> {
    answer(&mut session(model), prompt, 0)
}

/// Writes a prompt, of which `cut` tokens are fed first.
fn write(model: &Model, to: &PromptFolder, prompt: &[u32], cut: usize) -> PathBuf {
    write_of(session(model), to, prompt, cut)
}

fn write_of(mut session: Session<'_>, to: &PromptFolder, prompt: &[u32], cut: usize) -> PathBuf {
    session.prefill(&prompt[..cut]).unwrap();
    session.feed(&prompt[cut..]).unwrap();
    session.decode(3).unwrap();
    session.keep(to).unwrap().unwrap()
}

/// The answer with what the folder has, and what that was.
fn warm(model: &Model, from: &PromptFolder, prompt: &[u32]) -> (Vec<u32>, Restored) {
    warm_in(session(model), from, prompt)
}

fn warm_in(mut session: Session<'_>, from: &PromptFolder, prompt: &[u32]) -> (Vec<u32>, Restored) {
    let restored = session.restore(from, prompt);
    assert_eq!(restored.positions, session.position());
    (answer(&mut session, prompt, restored.positions), restored)
}

fn models(folder: &Path) -> Vec<PathBuf> {
    let quantised = |ty, spec| Spec { ty, ..spec }.write(folder).0;
    let mut all = vec![
        quantised(GgmlType::Q4_0, Spec::llama()),
        quantised(GgmlType::Q8_0, Spec::gemma3()),
        quantised(GgmlType::Q4_0, Spec::gpt_oss()),
        quantised(GgmlType::F16, Spec::qwen35()),
        quantised(GgmlType::F16, Spec::granitehybrid()),
        quantised(GgmlType::F16, Spec::lfm2()),
        Spec::deepseek2().write(folder).0,
        Spec { long_context: Some(80), seed: 61, ..Spec::llama() }.write(folder).0,
    ];
    all.extend(models::real_model(models::SMOLLM2));
    all
}

#[test]
fn what_comes_from_a_file_is_what_is_computed() {
    let place = tempfile::tempdir().unwrap();
    for path in models(place.path()) {
        let model = open(&path);
        let recurrent = model.spec().layers.iter().any(|layer| {
            !matches!(layer.mixer, None | Some(Mixer::Attention(_) | Mixer::LatentAttention(_)))
        });
        let windowed = model.spec().stored().any(|stored| stored.positions.is_some());
        let own = tempfile::tempdir().unwrap();
        let (folder, vocab) = (folder(&own), model.spec().vocab.min(40_000) - 1);
        let prompt = tokens(210, vocab, 5);
        let what = path.display();
        write(&model, &folder, &prompt, 130);
        let (found, restored) = warm(&model, &folder, &prompt);
        assert!(found == cold(&model, &prompt), "{what}");
        assert_eq!(restored.positions, if recurrent { 130 } else { 209 }, "{what}");
        assert!(restored.ignored.is_empty() && restored.file.is_some());
        // Prompts that have a part of it.
        for n in [1, 63, 64, 65, 100, 128, 129, 130, 131, 192, 209] {
            let other = [&prompt[..n], &[vocab as u32, 7, 8]].concat();
            let (found, restored) = warm(&model, &folder, &other);
            assert!(found == cold(&model, &other), "{n} tokens, {what}");
            let expected = match (recurrent, n) {
                (true, 130..) => 130,
                (true, _) => 0,
                // Of layers with a window of 12 the file has the pages that are seen after the last 64 tokens of the prompt.
                (false, 64..140) if windowed => 0,
                // One that is long to the model is computed in another way than one that is not.
                (false, ..=77) if path.to_string_lossy().contains("long") => restored.positions,
                (false, 64..) => n,
                (false, _) => 0,
            };
            let long = model.spec().long_context.rope.is_some();
            assert!(long || restored.positions == expected, "{n} tokens, {what}");
        }
    }
}

#[test]
fn a_session_goes_on_after_a_file_as_after_a_prompt() {
    let place = tempfile::tempdir().unwrap();
    for spec in [Spec::llama(), Spec::qwen35(), Spec::gemma3()] {
        let model = open(&spec.write(place.path()).0);
        let folder = folder(&place);
        let prompt = tokens(200, 290, 5);
        write(&model, &folder, &prompt, 150);
        let mut session = session(&model);
        let at = session.restore(&folder, &prompt).positions;
        assert!(at >= 150);
        assert_eq!(session.restore(&folder, &prompt).positions, 0, "it is not empty any more");
        session.feed(&prompt[at..]).unwrap();
        // Cut back into what was mapped, and on from there.
        let left = session.truncate(160);
        assert!(left >= 150);
        let other = [&prompt[..left], &tokens(90, 290, 6)].concat();
        assert!(answer(&mut session, &other, left) == cold(&model, &other));
        let left = session.truncate(0);
        assert_eq!(left, 0);
        session.prefill(&other[..100]).unwrap();
        assert!(answer(&mut session, &other, 100) == cold(&model, &other));
        // What was read in another way than a prompt is not written as one.
        let file = session.keep(&folder).unwrap().unwrap();
        let listed = folder.list().unwrap();
        let kept = listed.iter().find(|listed| listed.path == file).unwrap();
        assert_eq!(kept.prompt.as_ref().unwrap().1, other);
        session.truncate(0);
        session.feed(&other[..63]).unwrap();
        assert_eq!(session.keep(&folder).unwrap(), None, "too short to be worth it");
    }
}

#[test]
fn files_of_others_are_not_used() {
    let place = tempfile::tempdir().unwrap();
    let [one, other] = [1, 2].map(|seed| {
        let own = place.path().join(seed.to_string());
        fs::create_dir(&own).unwrap();
        open(&Spec { seed, ..Spec::llama() }.write(&own).0)
    });
    let (folder, prompt) = (folder(&place), tokens(150, 290, 5));
    let path = write(&one, &folder, &prompt, 100);
    let (found, restored) = warm(&other, &folder, &prompt);
    assert!(found == cold(&other, &prompt) && found != cold(&one, &prompt));
    assert!(restored.positions == 0 && restored.ignored.is_empty(), "its name says so");
    // Under a name that says that it is of this model, too.
    let theirs = write(&other, &folder, &prompt, 100);
    fs::copy(&path, &theirs).unwrap();
    let (found, restored) = warm(&other, &folder, &prompt);
    assert!(found == cold(&other, &prompt));
    assert!(matches!(restored.ignored[0].why, PromptFileError::Foreign));
    // Another precision has other bits.
    let options =
        SessionOptions { prompt_precision: Precision::Bits16, ..SessionOptions::default() };
    let mut session = Session::new(&one, &options).unwrap();
    assert_eq!(session.restore(&folder, &prompt).positions, 0);
}

#[test]
fn every_cpu_and_layout_uses_the_file_of_another() {
    let place = tempfile::tempdir().unwrap();
    let file = Spec { ty: GgmlType::Q4_0, ..Spec::llama() }.write(place.path()).0;
    let (folder, prompt) = (folder(&place), tokens(150, 290, 5));
    let one = open(&file);
    write(&one, &folder, &prompt, 100);
    let answer = cold(&one, &prompt);
    for isa in Isa::available() {
        for repack in [Repack::Off, Repack::On] {
            let options = OpenOptions { isa: Some(isa), repack, ..OpenOptions::default() };
            let model = Model::open(&file, &options).unwrap();
            let (found, restored) = warm(&model, &folder, &prompt);
            // bf16 products of prompts have bits of their own.
            let same = isa.bits() == one.isa().bits();
            assert_eq!(restored.positions > 0, same, "{isa} {repack:?}");
            assert!(found == cold(&model, &prompt), "{isa} {repack:?}");
            assert_eq!(found == answer, same, "{isa} {repack:?}");
        }
    }
}

#[test]
fn a_file_that_is_cut_or_changed_anywhere_gives_the_cold_answer() {
    let place = tempfile::tempdir().unwrap();
    for spec in [Spec::llama(), Spec::qwen35()] {
        let model = open(&spec.write(place.path()).0);
        let own = tempfile::tempdir().unwrap();
        let (folder, prompt) = (folder(&own), tokens(150, 290, 5));
        let path = write(&model, &folder, &prompt, 100);
        let (good, cold) = (fs::read(&path).unwrap(), cold(&model, &prompt));
        let header = u32::from_le_bytes(good[12..16].try_into().unwrap()) as usize;
        for i in 0..200 {
            fs::write(&path, &good[..good.len() * i / 200]).unwrap();
            let (found, restored) = warm(&model, &folder, &prompt);
            assert!(found == cold && restored.ignored.len() == 1, "cut at {i} of 200");
        }
        for at in (0..header).step_by(31).chain((64 << 10..good.len()).step_by(20_011)) {
            let mut bytes = good.clone();
            bytes[at] ^= 64;
            fs::write(&path, &bytes).unwrap();
            let (found, restored) = warm(&model, &folder, &prompt);
            assert!(found == cold, "changed at {at}");
            // The third page is not used after states of 100 tokens.
            assert!(restored.ignored.len() == 1 || restored.positions == 100, "changed at {at}");
        }
        // The last token is another one: as much as is the same is used.
        let mut other = prompt.clone();
        *other.last_mut().unwrap() ^= 1;
        fs::write(&path, &good).unwrap();
        let (found, _) = warm(&model, &folder, &other);
        assert!(found == self::cold(&model, &other) && found != cold);
    }
}

/// Makes the checksums of a file right again.
fn seal(bytes: &mut [u8]) {
    let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (header, pages, stride, start) = (field(12), field(60), field(64), field(72));
    let crcs = header - 4 - 4 * pages;
    for page in 0..pages {
        let crc = crc32fast::hash(&bytes[start + page * stride..][..stride]);
        bytes[crcs + 4 * page..][..4].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(&bytes[..header - 4]);
    bytes[header - 4..header].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn what_are_no_numbers_under_right_checksums_is_computed_anew() {
    let place = tempfile::tempdir().unwrap();
    let spec = Spec { key_dim: 32, value_dim: 64, ..Spec::llama() };
    let model = open(&spec.write(place.path()).0);
    let prompt = tokens(150, 290, 5);
    for cache_type in KvType::CHOICES {
        let own = tempfile::tempdir().unwrap();
        let folder = folder(&own);
        let options = SessionOptions { cache_type, ..SessionOptions::default() };
        let session = || Session::new(&model, &options).unwrap();
        let path = write_of(session(), &folder, &prompt, 100);
        let good = fs::read(&path).unwrap();
        let cold = answer(&mut session(), &prompt, 0);
        let mut bytes = good.clone();
        bytes[64 << 10..].chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&[0, 0x7e]));
        seal(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let (found, restored) = warm_in(session(), &folder, &prompt);
        assert_eq!(restored.positions, 149, "nobody can see it yet");
        assert!(found == cold, "{cache_type}");

        // Any bytes are codes and scales of something: what comes of them is wrong, and no more than that.
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes = good;
        bytes[64 << 10..].iter_mut().for_each(|byte| *byte = random());
        seal(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let mut session = session();
        assert_eq!(session.restore(&folder, &prompt).positions, 149, "{cache_type}");
        drop(session.feed(&prompt[149..]).map(<[f32]>::to_vec));
    }
}

#[test]
fn a_file_that_is_cut_under_its_map_is_computed_anew_or_named() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let (folder, prompt) = (folder(&place), tokens(150, 290, 5));
    let path = write(&model, &folder, &prompt, 100);
    let good = fs::read(&path).unwrap();
    let cut = || fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(70_000).unwrap();
    let mut early = session(&model);
    let at = early.restore(&folder, &prompt).positions;
    cut();
    assert!(answer(&mut early, &prompt, at) == cold(&model, &prompt));
    fs::write(&path, good).unwrap();
    let mut late = session(&model);
    let at = late.restore(&folder, &prompt).positions;
    late.feed(&prompt[at..]).unwrap();
    cut();
    let error = late.decode(4).unwrap_err();
    assert!(matches!(error, ModelError::Map(_)), "{error}");
    assert!(error.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{error}");
    // The session is of use again without it.
    late.truncate(0);
    assert!(answer(&mut late, &prompt, 0) == cold(&model, &prompt));
}

#[test]
fn the_folder_is_private_limited_and_listed() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let unlimited = folder(&place);
    assert!(unlimited.list().unwrap().is_empty(), "there is none yet");
    let prompts = [1, 2, 3].map(|seed| tokens(100, 290, seed));
    let paths = prompts.each_ref().map(|prompt| write(&model, &unlimited, prompt, 50));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(unlimited.path()), mode(&paths[0])), (0o700, 0o600));
    assert_eq!(write(&model, &unlimited, &prompts[0], 20), paths[0], "the same prompt again");
    let bytes = fs::metadata(&paths[0]).unwrap().len();
    fs::write(unlimited.path().join("other.txt"), "not ours").unwrap();
    fs::write(unlimited.path().join("bad.prompt"), "not a prompt").unwrap();
    let listed = unlimited.list().unwrap();
    assert_eq!(listed.len(), 4);
    let good: Vec<_> = listed.iter().filter_map(|l| l.prompt.as_ref().ok()).collect();
    assert!(good.len() == 3 && good.iter().any(|(_, tokens)| *tokens == prompts[1]));
    // The first is used, so the second goes when a fourth comes.
    let hour =
        |h: u64| std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(h * 3600);
    for (h, path) in paths.iter().enumerate() {
        fs::File::open(path).unwrap().set_modified(hour(h as u64 + 1)).unwrap();
    }
    fs::remove_file(unlimited.path().join("bad.prompt")).unwrap();
    assert!(warm(&model, &unlimited, &prompts[0]).1.positions == 99);
    let limited = PromptFolder::new(unlimited.path(), 3 * bytes);
    let fourth = write(&model, &limited, &tokens(100, 290, 4), 50);
    let there = |path: &PathBuf| path.exists();
    assert_eq!(paths.each_ref().map(there), [true, false, true]);
    assert!(fourth.exists());
    let tiny = PromptFolder::new(unlimited.path(), bytes - 1);
    let mut session = session(&model);
    session.feed(&prompts[1]).unwrap();
    assert_eq!(session.keep(&tiny).unwrap(), None, "it would not fit");
    assert_eq!(limited.clear().unwrap(), (3, 3 * bytes));
    assert!(limited.list().unwrap().is_empty() && limited.path().join("other.txt").exists());
}

/// In a folder of the network a file has a hidden name while it is written, which a process that is killed leaves.
#[test]
fn what_killed_processes_have_left_goes_and_counts_until_then() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let unlimited = folder(&place);
    let first = write(&model, &unlimited, &tokens(100, 290, 1), 50);
    let (written, bytes) = (fs::read(&first).unwrap(), fs::metadata(&first).unwrap().len());
    let left = |name: &str, content: &[u8], hours: u64| {
        let path = unlimited.path().join(name);
        fs::write(&path, content).unwrap();
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
        fs::File::open(&path).unwrap().set_modified(then).unwrap();
        path
    };
    let old = left(".a-b-c.prompt.17-0.tmp", &written[..100], 2);
    let empty = left(".a-b-d.prompt.17-1.tmp", b"", 2);
    let other = left(".a-b-e.prompt.17-2.tmp", b"mine", 2);
    let new = left(".a-b-f.prompt.18-0.tmp", &written, 0);
    // The first has no room next to the one that is being written.
    let limited = PromptFolder::new(unlimited.path(), 2 * bytes + 100);
    let second = write(&model, &limited, &tokens(100, 290, 2), 50);
    let there = [&old, &empty, &other, &new, &first, &second].map(|path| path.exists());
    assert_eq!(there, [false, false, true, true, false, true]);
    // An empty file that has the name of a prompt is replaced.
    fs::write(&second, "").unwrap();
    assert_eq!(write(&model, &unlimited, &tokens(100, 290, 2), 50), second);
    assert_eq!(warm(&model, &unlimited, &tokens(100, 290, 2)).1.positions, 99);
}

#[test]
fn no_link_is_followed_and_nothing_replaced_that_is_no_prompt_file() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let (folder, prompt) = (folder(&place), tokens(100, 290, 1));
    let path = write(&model, &folder, &prompt, 50);
    let written = fs::read(&path).unwrap();
    let victim = place.path().join("victim");
    let mut session = session(&model);
    session.feed(&prompt).unwrap();
    // A link to a file, to a prompt file, and to nothing.
    for (target, content) in
        [("victim", Some(&b"mine"[..])), ("victim", Some(&written)), ("no", None)]
    {
        fs::remove_file(&path).unwrap();
        content.iter().for_each(|content| fs::write(&victim, content).unwrap());
        std::os::unix::fs::symlink(place.path().join(target), &path).unwrap();
        let error = session.keep(&folder).unwrap_err();
        assert!(matches!(error, PromptWriteError::NotOurs { .. }), "{error}");
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        content.iter().for_each(|content| assert!(fs::read(&victim).unwrap() == *content));
        assert!(!place.path().join("no").exists());
    }
    // Another file of that name, and one that is a prompt's.
    fs::remove_file(&path).unwrap();
    fs::write(&path, "mine").unwrap();
    let error = session.keep(&folder).unwrap_err();
    assert!(matches!(error, PromptWriteError::NotOurs { .. }), "{error}");
    assert!(fs::read(&path).unwrap() == b"mine");
    fs::remove_file(&path).unwrap();
    pipe(&path);
    let error = session.keep(&folder).unwrap_err();
    assert!(error.to_string().contains("is a pipe"), "{error}");
    assert_eq!(warm(&model, &folder, &prompt).1.positions, 0);
    fs::remove_file(&path).unwrap();
    fs::write(&path, &written[..written.len() / 2]).unwrap();
    assert_eq!(session.keep(&folder).unwrap(), Some(path));
    assert_eq!(warm(&model, &folder, &prompt).1.positions, 99);
}

fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn what_only_has_the_name_of_a_prompt_file_is_not_removed() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let (folder, prompt) = (folder(&place), tokens(100, 290, 1));
    let path = write(&model, &folder, &prompt, 50);
    let bytes = fs::metadata(&path).unwrap().len();
    let notes = folder.path().join("notes.prompt");
    fs::write(&notes, vec![b'x'; 3 * bytes as usize]).unwrap();
    let link = folder.path().join("link.prompt");
    std::os::unix::fs::symlink(&notes, &link).unwrap();
    pipe(&folder.path().join("pipe.prompt"));
    // It is too large for the folder, and does not go; the older prompt does.
    let limited = PromptFolder::new(folder.path(), 2 * bytes);
    let second = write(&model, &limited, &tokens(100, 290, 2), 50);
    assert!(notes.exists() && second.exists());
    // Nor does one that is found under the name of a prompt.
    let renamed = folder.path().join(path.file_name().unwrap());
    fs::write(&renamed, "mine").unwrap();
    let (_, restored) = warm(&model, &folder, &prompt);
    assert!(matches!(restored.ignored[0].why, PromptFileError::Magic { .. }));
    assert_eq!(folder.clear().unwrap(), (1, bytes));
    assert_eq!(fs::read(&renamed).unwrap(), b"mine");
    assert!(notes.exists() && fs::symlink_metadata(&link).is_ok() && !second.exists());
    assert_eq!(folder.list().unwrap().len(), 2, "links and pipes are not listed");
}

#[test]
fn an_engine_saves_and_restores_through_no_link() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let options = EngineOptions { sequences: 1, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, &options).unwrap();
    let prompt = tokens(150, 290, 5);
    of_engine(&mut engine, &prompt, "");
    let slots = place.path().join("slots");
    fs::create_dir(&slots).unwrap();
    let (good, victim) = (slots.join("good"), place.path().join("victim"));
    let (saved, _) = engine.save(("", &AdapterSet::default()), &prompt, &good).unwrap().unwrap();
    assert_eq!(engine.restore(("", &AdapterSet::default()), &good).unwrap().0.len(), saved);
    fs::copy(&good, &victim).unwrap();
    let before = fs::read(&victim).unwrap();
    let named = |name: &str| slots.join(name);
    std::os::unix::fs::symlink(&victim, named("link")).unwrap();
    fs::write(named("text"), "mine").unwrap();
    pipe(&named("pipe"));
    for (name, why) in [
        ("link", "is a symbolic link"),
        ("text", "is a file of another kind"),
        ("pipe", "is a pipe"),
    ] {
        let error = engine.save(("", &AdapterSet::default()), &prompt, &named(name)).unwrap_err();
        assert!(matches!(error, PromptWriteError::NotOurs { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        engine.restore(("", &AdapterSet::default()), &named(name)).unwrap_err();
    }
    assert!(fs::read(&victim).unwrap() == before && fs::read(named("text")).unwrap() == b"mine");
    // Saved once more under its own name.
    engine.save(("", &AdapterSet::default()), &prompt, &good).unwrap().unwrap();
    let other = fs::metadata(&slots).unwrap().uid() + 12_345;
    if chown(&slots, Some(other), None).is_err() {
        return eprintln!("skipped: only root can give a folder to another user");
    }
    fs::set_permissions(&slots, fs::Permissions::from_mode(0o777)).unwrap();
    let error = engine.save(("", &AdapterSet::default()), &prompt, &good).unwrap_err();
    assert!(matches!(error, PromptWriteError::FolderOfOthers(_)), "{error}");
    let error = engine.restore(("", &AdapterSet::default()), &good).unwrap_err();
    assert!(error.to_string().contains("belongs to another user"), "{error}");
}

#[test]
fn a_folder_of_another_user_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let (folder, prompt) = (folder(&place), tokens(100, 290, 1));
    write(&model, &folder, &prompt, 50);
    assert_eq!(warm(&model, &folder, &prompt).1.positions, 99);
    let other = fs::metadata(folder.path()).unwrap().uid() + 12_345;
    if chown(folder.path(), Some(other), None).is_err() {
        return eprintln!("skipped: only root can give a folder to another user");
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(folder.list().is_err() && folder.clear().is_err());
    assert_eq!(warm(&model, &folder, &prompt).1.positions, 0);
    let mut session = session(&model);
    session.feed(&prompt).unwrap();
    let error = session.keep(&folder).unwrap_err();
    assert!(error.to_string().contains("belongs to another user"), "{error}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_two_writers_are_both_right() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let prompt = tokens(100, 290, 1);
    let file = place.path().join("a file");
    fs::write(&file, "").unwrap();
    let mut first = session(&model);
    first.feed(&prompt).unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = first.keep(&PromptFolder::new(&path, u64::MAX)).unwrap_err();
        assert!(matches!(error, PromptWriteError::Folder { .. }), "{error}");
        assert!(error.to_string().contains("a file"), "{error}");
        assert_eq!(session(&model).restore(&PromptFolder::new(path, 1), &prompt).positions, 0);
    }
    let folder = folder(&place);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..5 {
                    let prompt = tokens(100, 290, i);
                    write(&model, &folder, &prompt, 50);
                    let (found, restored) = warm(&model, &folder, &prompt);
                    assert!(restored.positions == 99 && restored.ignored.is_empty());
                    assert!(found == cold(&model, &prompt));
                }
            });
        }
    });
    assert_eq!(folder.list().unwrap().iter().filter(|l| l.prompt.is_ok()).count(), 5);
}

/// What an engine answers, and how much of the prompt was not computed.
fn of_engine(engine: &mut Engine<'_>, prompt: &[u32], salt: &str) -> (Vec<u32>, usize) {
    let request = Request {
        prompt: prompt.to_vec(),
        max_tokens: 4,
        ignore_eos: true,
        salt: salt.into(),
        ..Request::default()
    };
    engine.add(request).unwrap();
    let (mut all, mut reused) = (Vec::new(), 0);
    while engine
        .step(&mut |_, event| match event {
            Event::Prompt { reused: n, .. } => reused = n,
            Event::Token(token, logits) => {
                all.push(token);
                all.extend(logits.iter().map(|x| x.to_bits()));
            }
            Event::Finished(_) => {}
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        })
        .unwrap()
    {}
    (all, reused)
}

#[test]
fn engines_share_prompts_through_files_after_a_restart() {
    let place = tempfile::tempdir().unwrap();
    for path in models(place.path()) {
        let model = open(&path);
        let own = tempfile::tempdir().unwrap();
        let prompts = Some(folder(&own));
        let options = EngineOptions { sequences: 2, prompts, ..EngineOptions::default() };
        let engine = || Engine::new(&model, &options).unwrap();
        let vocab = model.spec().vocab.min(40_000) - 1;
        let length = model.spec().long_context.rope.as_ref().map_or(400, |_| 79);
        let prompt = tokens(length, vocab, 5);
        let mut first = engine();
        let (cold, reused) = of_engine(&mut first, &prompt, "");
        assert_eq!(reused, 0);
        assert_eq!(of_engine(&mut first, &prompt, "secret"), (cold.clone(), 0));
        first.keep(("", &AdapterSet::default()), &prompt).unwrap().unwrap();
        drop(first);
        let mut second = engine();
        let (found, reused) = of_engine(&mut second, &prompt, "");
        assert!(found == cold && reused >= (length - 79).max(64), "{reused}, {}", path.display());
        assert_eq!(of_engine(&mut second, &prompt, "secret"), (cold.clone(), 0), "another salt");
        // From the file again, by the index; and another prompt that has a part of it.
        let again = of_engine(&mut second, &prompt, "");
        assert_eq!(again.1, reused, "{}", path.display());
        assert!(again.0 == cold, "{}", path.display());
        let other = [&prompt[..70], &[1, 2, 3]].concat();
        let (found, shared) = of_engine(&mut second, &other, "");
        assert!(found == of_engine(&mut engine(), &other, "none").0);
        // The index and the file have whole pages of a prompt.
        assert!(shared == 70.min(length / 64 * 64) || shared == 0, "{shared}");
        assert!(second.ignored_prompts().is_empty());
        // A file that is of no use any more.
        let file = folder(&own).list().unwrap().remove(0).path;
        let good = fs::read(&file).unwrap();
        let mut bad = good.clone();
        let at = bad.len() - 5;
        bad[at] ^= 1;
        fs::write(&file, &bad).unwrap();
        let mut third = engine();
        assert_eq!(of_engine(&mut third, &prompt, "").0, cold);
        assert_eq!(third.ignored_prompts().len(), 1, "{}", path.display());
    }
}

#[test]
fn an_engine_computes_what_a_file_has_no_numbers_of_and_forgets_one_that_was_cut() {
    let place = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(place.path()).0);
    let prompts = Some(folder(&place));
    let options = EngineOptions { sequences: 2, prompts, ..EngineOptions::default() };
    let prompt = tokens(150, 290, 5);
    let mut first = Engine::new(&model, &options).unwrap();
    let (cold, _) = of_engine(&mut first, &prompt, "");
    let path = first.keep(("", &AdapterSet::default()), &prompt).unwrap().unwrap();
    let good = fs::read(&path).unwrap();
    let mut bytes = good.clone();
    bytes[64 << 10..].chunks_exact_mut(2).for_each(|x| x.copy_from_slice(&[0, 0x7e]));
    seal(&mut bytes);
    fs::write(&path, &bytes).unwrap();
    let mut second = Engine::new(&model, &options).unwrap();
    assert_eq!(of_engine(&mut second, &prompt, ""), (cold.clone(), 0));
    fs::write(&path, &good).unwrap();
    let mut third = Engine::new(&model, &options).unwrap();
    assert_eq!(of_engine(&mut third, &prompt, ""), (cold.clone(), 149));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(70_000).unwrap();
    let request = Request { prompt: prompt.clone(), max_tokens: 4, ..Request::default() };
    third.add(request).unwrap();
    let error = third.step(&mut |_, _| {}).unwrap_err();
    assert!(matches!(error, ModelError::Map(_)), "{error}");
    assert_eq!(of_engine(&mut third, &prompt, ""), (cold, 0), "it continues without the file");
}
