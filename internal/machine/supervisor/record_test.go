// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// TestRecord checks that the first end that is recorded stays, and that texts of any length fit.
func TestRecord(t *testing.T) {
	t.Parallel()
	f, err := MakeRecord(filepath.Join(t.TempDir(), "end"))
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	read := func() *End {
		e, err := ReadEnd(bytes.NewReader(contentOf(t, f)))
		assert.NoError(t, err)
		return e
	}
	e := read()
	assert.True(t, e == nil, "a new record has the end %+v", e)
	at := time.Now().Round(0).UTC()
	first := End{Reason: "Completed", Message: strings.Repeat("<", 2*maxText), Output: strings.Repeat(`"`, 2*maxOutput), At: at}
	assert.NoError(t, writeEnd(f, first))
	assert.NoError(t, writeEnd(f, End{Reason: "Killed", At: at}))
	e = read()
	assert.True(t, e != nil && e.Reason == "Completed" && len(e.Message) == maxText && len(e.Output) == maxOutput && e.At.Equal(at), "the end is %+v", e)
	info, err := f.Stat()
	assert.True(t, err == nil && info.Size() == RecordSize, "the record is %+v, %v", info, err)
}

func contentOf(t *testing.T, f *os.File) []byte {
	t.Helper()
	content, err := os.ReadFile(f.Name())
	assert.NoError(t, err)
	return content
}

// TestDamagedRecords checks that a record of which a part is missing or another has an end that cannot be read, and
// that nothing is written over it.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	f, err := MakeRecord(filepath.Join(t.TempDir(), "end"))
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	assert.NoError(t, writeEnd(f, End{Reason: "Completed"}))
	whole := contentOf(t, f)
	for name, content := range map[string][]byte{
		"its beginning":   whole[:40],
		"its end":         append(make([]byte, 40), whole[40:]...),
		"another text":    bytes.Replace(whole, []byte("Completed"), []byte("Forced   "), 1),
		"another content": []byte("not a record\n"),
		"a space":         []byte(" "),
	} {
		if e, err := ReadEnd(bytes.NewReader(content)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: got %+v, %v", name, e, err)
		}
		assert.NoError(t, assert.ErrorOf(f.WriteAt(append(content, make([]byte, RecordSize-len(content))...)[:RecordSize], 0)))
		assert.NoError(t, writeEnd(f, End{Reason: "Killed"}))
		if _, err := ReadEnd(bytes.NewReader(contentOf(t, f))); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: it was written over", name)
		}
	}
}

// FuzzReadEnd checks that a record of any content has an end, none, or a damaged one, the same each time, that nothing
// beyond the size of a record is read, and that an end can be written down again.
func FuzzReadEnd(f *testing.F) {
	whole, err := os.CreateTemp(f.TempDir(), "")
	assert.NoError(f, err)
	assert.NoError(f, writeEnd(whole, End{Reason: "Completed", Message: "m", Output: "o", At: time.Unix(1, 0)}))
	content, err := os.ReadFile(whole.Name())
	assert.NoError(f, errors.Join(err, whole.Close()))
	signed := func(text string) []byte { return fmt.Appendf(nil, "%x %s", sha256.Sum256([]byte(text)), text) }
	for _, seed := range [][]byte{
		nil, content, content[:70], make([]byte, RecordSize), make([]byte, 2*RecordSize), []byte(" "), []byte("\n"), signed(""), signed("null"), signed("{}"),
		signed(`{"at":"9999-12-31T23:59:59Z","reason":"\u001b[2J"}`), signed(`{"at":"-"}`), signed(strings.Repeat("[", RecordSize-65)),
		signed(`{"output":"` + strings.Repeat("a", RecordSize) + `"}`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		from := bytes.NewReader(content)
		e, err := ReadEnd(from)
		read := len(content) - from.Len()
		assert.True(t, read <= RecordSize, "%d bytes of it are read", read)
		assert.True(t, (err != nil) == errors.Is(err, ErrDamaged) && (err == nil || e == nil), "got %+v, %v", e, err)
		again, errAgain := ReadEnd(bytes.NewReader(content))
		assert.True(t, errors.Is(errAgain, err) && (e == nil) == (again == nil) && (e == nil || (e.Reason == again.Reason && e.At.Equal(again.At))),
			"got %+v, %v and then %+v, %v", e, err, again, errAgain)
	})
}
