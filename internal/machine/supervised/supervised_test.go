// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervised

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/supervisor"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestEndingQEMU checks that a socket whose QEMU has closed it means that there is no QEMU to follow.
func TestEndingQEMU(t *testing.T) {
	t.Parallel()
	m := Machine{Machine: machine.Machine{Path: t.TempDir()}}
	listener, err := m.Machine.Listen(machine.EventsSocket)
	assert.NoError(t, errors.Join(err, listener.Close()))
	assert.ErrorIs(t, "the dial", assert.ErrorOf(m.dialFile(t.Context(), machine.EventsSocket)), ErrNoQEMU)
}

// TestOlderState checks that the state of an earlier version, which is shorter and lacks a sum, is read, also once it
// has its room.
func TestOlderState(t *testing.T) {
	t.Parallel()
	f := stateFile{filepath.Join(t.TempDir(), stateName)}
	assert.NoError(t, os.WriteFile(f.path, []byte(`{"token":"a","program":"p","pid":1,"startTicks":2,"boot":"b"}`+"\n"), 0o600))
	for range 2 {
		if s, err := f.readState(); err != nil || s.PID != 1 || s.StartTicks != 2 {
			t.Errorf("the state is %+v, %v", s, err)
		}
		opened, err := f.openFile()
		assert.NoError(t, errors.Join(err, opened.Close()))
	}
}

// TestState checks that a state is written in place, in the same room whatever it has, and that one which is being
// written, of which a reader can see a part, is not taken for a state.
func TestState(t *testing.T) {
	t.Parallel()
	f := stateFile{filepath.Join(t.TempDir(), stateName)}
	opened, err := f.openFile()
	assert.NoError(t, err)
	defer func() { _ = opened.Close() }()
	first := state{Token: strings.Repeat("b", 26), Program: strings.Repeat("c", 64), PID: 4000000, StartTicks: 1 << 60, Boot: strings.Repeat("d", 36)}
	next := state{Token: strings.Repeat("e", 26), Program: strings.Repeat("f", 64), PID: 3999999, StartTicks: 1<<60 + 1, Boot: first.Boot}
	first.Sum, next.Sum = first.checksum(), next.checksum()
	var contents []string
	for _, s := range []state{first, next} {
		assert.NoError(t, writeState(opened, s))
		if got, err := f.readState(); err != nil || got != s {
			t.Errorf("got %+v, %v, want %+v", got, err, s)
		}
		contents = append(contents, framework.ReadFile(t, f.path))
	}
	for i := range stateSize {
		assert.NoError(t, os.WriteFile(f.path, []byte(contents[1][:i]+contents[0][i:]), 0o600))
		if s, err := f.readState(); err == nil && s != first && s != next {
			t.Fatalf("of the first %d bytes of one and the rest of another it has %+v", i, s)
		}
	}
	info, err := opened.Stat()
	assert.True(t, err == nil && info.Size() == stateSize, "its file is %+v, %v", info, err)
	assert.ErrorSays(t, "a long state", writeState(opened, state{Token: strings.Repeat("a", stateSize)}), "may have at most 1024")
}

// TestSettledState checks that a state which is being written is read again until it is whole, that one which is damaged
// is not read for ever, and that nothing waits for one that is missing, or for a caller that has ended.
func TestSettledState(t *testing.T) {
	t.Parallel()
	whole := state{Token: "a", PID: 4, StartTicks: 5, Boot: "b"}
	for name, c := range map[string]struct {
		content string
		wholeAt int
		ends    bool
		pauses  int
		fails   bool
	}{
		"torn":            {content: `{"token":"a","pid":4,"sum":"0"}`, wholeAt: 2, pauses: 2},
		"half":            {content: `{"token":`, wholeAt: 1, pauses: 1},
		"damaged":         {content: "x", pauses: readTries, fails: true},
		"missing":         {fails: true},
		"no time is left": {content: "x", ends: true, pauses: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := stateFile{filepath.Join(t.TempDir(), stateName)}
			if c.content != "" {
				assert.NoError(t, os.WriteFile(f.path, []byte(c.content), 0o600))
			}
			pauses := 0
			s, err := f.readUnlocked(func() bool {
				if pauses++; pauses == c.wholeAt {
					opened, err := f.openFile()
					assert.NoError(t, errors.Join(err, writeState(opened, whole), opened.Close()))
				}
				return !c.ends
			})
			assert.True(t, (err != nil) == c.fails && pauses == c.pauses && (c.fails || s.Token == whole.Token),
				"got %+v, %v after %d pauses, want %d", s, err, pauses, c.pauses)
		})
	}
}

// TestRecordIsNoLink checks that a record is never another file that a link leads to, nor a folder.
func TestRecordIsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other, link, folder := filepath.Join(dir, "other"), filepath.Join(dir, "link"), filepath.Join(dir, "folder")
	assert.NoError(t, errors.Join(os.WriteFile(other, []byte("kept"), 0o600), os.Symlink(other, link), os.Mkdir(folder, 0o700)))
	for _, path := range []string{link, folder} {
		for name, open := range map[string]func() (*os.File, error){
			"made":   func() (*os.File, error) { return supervisor.MakeRecord(path) },
			"opened": func() (*os.File, error) { return (&start{machine: Machine{Record: path}}).openRecord() },
		} {
			if f, err := open(); err == nil {
				t.Errorf("%s is %s", path, name)
				_ = f.Close()
			}
		}
	}
	content, err := os.ReadFile(other)
	assert.True(t, err == nil && string(content) == "kept", "the other file has %q, %v", content, err)
}
