// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package compression_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// disk returns the content of the files in testdata, which xz 5.4 and zstd 1.5 have made of it: by the
// options that their names have, or of its two halves with padding between them.
func disk() []byte {
	content := bytes.Repeat([]byte("drover! "), 1<<17)
	copy(content[510:], "\x55\xaa")
	return content
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	return []byte(framework.ReadFile(t, filepath.Join("testdata", name)))
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

func zstandard(t testing.TB, content []byte, options ...zstd.EOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b, options...)
	assert.NoError(t, err)
	_, err = w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return b.Bytes()
}

// decompress returns the whole content of a source.
func decompress(reader io.Reader) (content []byte, format string, err error) {
	r, err := compression.NewReader(reader)
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	content, err = io.ReadAll(r)
	return content, r.Format, err
}

func TestFormats(t *testing.T) {
	t.Parallel()
	content := disk()
	first, second := content[:1<<19], content[1<<19:]
	for name, c := range map[string]struct {
		sent   []byte
		format string
	}{
		"not compressed":      {content, ""},
		"gzip":                {zipped(t, content), "gzip"},
		"gzip, two members":   {slices.Concat(zipped(t, first), zipped(t, second)), "gzip"},
		"zstd":                {zstandard(t, content), "zstd"},
		"zstd, two frames":    {slices.Concat(zstandard(t, first), zstandard(t, second)), "zstd"},
		"zstd, 64 MiB":        {zstandard(t, content, zstd.WithWindowSize(64<<20)), "zstd"},
		"zstd, to be skipped": {slices.Concat(zstandard(t, content), []byte("\x50\x2a\x4d\x18\x04\x00\x00\x00skip")), "zstd"},
		"xz -9":               {fixture(t, "level-9.xz"), "xz"},
		"xz, blocks":          {fixture(t, "blocks.xz"), "xz"},
		"xz, two streams":     {fixture(t, "two-streams.xz"), "xz"},
		"xz --x86":            {fixture(t, "x86.xz"), "xz"},
		"xz --check=sha256":   {fixture(t, "sha256.xz"), "xz"},
		"xz --check=none":     {fixture(t, "no-check.xz"), "xz"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, from := range map[string]io.Reader{"at once": bytes.NewReader(c.sent), "by bytes": iotest.OneByteReader(bytes.NewReader(c.sent))} {
				got, format, err := decompress(from)
				assert.True(t, err == nil && format == c.format && bytes.Equal(got, content), "%s: got %d bytes, format %q, error %v", how, len(got), format, err)
			}
		})
	}
	for _, short := range []string{"", "\x1f", "\xfd7z", "\x28\xb5\x2f"} {
		got, format, err := decompress(bytes.NewReader([]byte(short)))
		assert.True(t, err == nil && format == "" && string(got) == short, "%q: got %q, format %q, error %v", short, got, format, err)
	}
}

// TestBadContent checks that damaged content, content that needs much memory, and anything behind the
// end are errors, in fixed words.
func TestBadContent(t *testing.T) {
	t.Parallel()
	content := disk()
	damaged := func(sent []byte) []byte {
		sent = slices.Clone(sent)
		sent[len(sent)/2] ^= 0x55
		return sent
	}
	all := map[string][]byte{"gzip": zipped(t, content), "xz": fixture(t, "level-9.xz"), "zstd": zstandard(t, content)}
	for format, sent := range all {
		says := "the content is compressed by " + format + ", and damaged or cut off"
		for name, bad := range map[string][]byte{
			"damaged": damaged(sent), "without its end": sent[:len(sent)-1], "half": sent[:len(sent)/2], "six bytes": sent[:6],
			"with text behind": slices.Concat(sent, []byte("text")), "with half of another behind": slices.Concat(sent, sent[:len(sent)/2]),
		} {
			_, _, err := decompress(bytes.NewReader(bad))
			_, ok := errors.AsType[*compression.Error](err)
			assert.True(t, ok && err.Error() == says, "%s, %s: got the error %v, want %q", format, name, err, says)
		}
	}
	for name, c := range map[string]struct {
		sent []byte
		says string
	}{
		"xz, 65 MiB":    {fixture(t, "dict-65MiB.xz"), "a dictionary of more than 67108864 bytes"},
		"xz, 1.5 GiB":   {fixture(t, "dict-1536MiB.xz"), "a dictionary of more than 67108864 bytes"},
		"second stream": {slices.Concat(fixture(t, "level-9.xz"), fixture(t, "dict-1536MiB.xz")), "a dictionary of more than 67108864 bytes"},
		"zstd, 128 MiB": {fixture(t, "window-128MiB.zst"), "a window of more than 67108864 bytes"},
		"second frame":  {slices.Concat(zstandard(t, content), fixture(t, "window-128MiB.zst")), "a window of more than 67108864 bytes"},
	} {
		assert.ErrorSays(t, name, readAll(c.sent), c.says)
	}
}

func readAll(sent []byte) error {
	_, _, err := decompress(bytes.NewReader(sent))
	return err
}

// TestErrorsOfTheSource checks that a source that fails is not mistaken for damaged content.
func TestErrorsOfTheSource(t *testing.T) {
	t.Parallel()
	content := disk()
	for format, sent := range map[string][]byte{"none": content, "gzip": zipped(t, content), "xz": fixture(t, "level-9.xz"), "zstd": zstandard(t, content)} {
		for _, length := range []int{0, 3, 8, len(sent) / 2, len(sent) - 1} {
			_, _, err := decompress(io.MultiReader(bytes.NewReader(sent[:length]), iotest.ErrReader(io.ErrClosedPipe)))
			assert.True(t, errors.Is(err, io.ErrClosedPipe), "%s, after %d bytes: got the error %v", format, length, err)
		}
	}
}

// TestMemory checks that content that decompresses to much, or says that it does, stays within the limit of memory.
func TestMemory(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	for name, c := range map[string]struct {
		sent   []byte
		length int64
	}{
		"xz of zeroes":        {fixture(t, "zeroes-8MiB.xz"), 8 << 20},
		"zstd of zeroes":      {zstandard(t, make([]byte, 8<<20)), 8 << 20},
		"gzip of zeroes":      {zipped(t, make([]byte, 8<<20)), 8 << 20},
		"xz, many streams":    {bytes.Repeat(fixture(t, "level-9.xz"), 10), 10 << 20},
		"zstd, many frames":   {bytes.Repeat(zstandard(t, disk(), zstd.WithWindowSize(64<<20)), 10), 10 << 20},
		"xz, much dictionary": {fixture(t, "dict-1536MiB.xz"), 0},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := compression.NewReader(bytes.NewReader(c.sent))
		n := int64(0)
		if err == nil {
			n, err = io.Copy(io.Discard, r)
			r.Close()
		}
		runtime.ReadMemStats(&after)
		assert.True(t, n == c.length && (err == nil) == (c.length > 0), "%s: got %d bytes, error %v", name, n, err)
		took := after.TotalAlloc - before.TotalAlloc
		assert.True(t, took <= 3*compression.MaxMemory, "%s: it took %d bytes of memory", name, took)
	}
}

// FuzzReader checks that no content causes a panic, an endless loop without content, or an error in
// words that are not fixed.
func FuzzReader(f *testing.F) {
	for _, name := range []string{"level-9.xz", "blocks.xz", "two-streams.xz", "x86.xz", "dict-65MiB.xz", "window-128MiB.zst"} {
		f.Add(fixture(f, name))
	}
	f.Add(zipped(f, disk()[:4096]))
	f.Add(zstandard(f, disk()[:4096]))
	f.Add([]byte("\x1f\x8b\x08\x08"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		r, err := compression.NewReader(bytes.NewReader(sent))
		if err == nil {
			defer r.Close()
			_, err = io.CopyN(io.Discard, r, 1<<20)
		}
		_, ok := errors.AsType[*compression.Error](err)
		assert.True(t, err == nil || ok || errors.Is(err, io.EOF), "got the error %v", err)
	})
}
