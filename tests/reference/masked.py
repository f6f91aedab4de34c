"""The masked tokens of src/data/masking.c, written once more."""

STREAM = 0x6D61736B696E6700
LOW, ALL = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def block(seed, stream, number):
    """Philox-4x32-10: four words of 32 bits."""
    key = [seed & LOW, seed >> 32]
    c = [number & LOW, number >> 32, stream & LOW, stream >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(second >> 32) ^ c[1] ^ key[0], second & LOW, (first >> 32) ^ c[3] ^ key[1], first & LOW]
        key = [(key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW]
    return c


def mask_window(ids, window, vocab, mask_token, seed=1, share=0.15):
    """Inputs, and targets that are -100 where nothing was chosen. The mask token is the only special one."""
    first = block(seed, STREAM, window)
    key, inputs, targets = first[1] << 32 | first[0], list(ids), []
    for place, token in enumerate(ids):
        words = block(key, STREAM, place)
        is_chosen = words[0] < share * 2**32 and token != mask_token
        targets.append(token if is_chosen else -100)
        if is_chosen and words[1] < 0.8 * 2**32:
            inputs[place] = mask_token
        elif is_chosen and words[1] < 0.9 * 2**32:
            inputs[place] = (words[2] << 32 | words[3]) * vocab >> 64
    return inputs, targets
