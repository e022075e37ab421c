// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// TestOlderState checks that the state of an earlier version, which is shorter and lacks a sum, is read, also once it
// has its room.
func TestOlderState(t *testing.T) {
	t.Parallel()
	p := Place{Machine: machine.Machine{Path: t.TempDir()}}
	assert.NoError(t, os.WriteFile(p.File(stateFile), []byte(`{"token":"a","program":"p","pid":1,"startTicks":2,"boot":"b"}`+"\n"), 0o600))
	for range 2 {
		if s, err := p.readState(); err != nil || s.PID != 1 || s.StartTicks != 2 {
			t.Errorf("the state is %+v, %v", s, err)
		}
		f, err := p.openState()
		assert.NoError(t, errors.Join(err, f.Close()))
	}
}

// TestState checks that a state is written in place, in the same room whatever it has, and that one which is being
// written, of which a reader can see a part, is not taken for a state.
func TestState(t *testing.T) {
	t.Parallel()
	p := Place{Machine: machine.Machine{Path: t.TempDir()}}
	f, err := p.openState()
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	first := state{Token: strings.Repeat("b", 26), Program: strings.Repeat("c", 64), PID: 4000000, StartTicks: 1 << 60, Boot: strings.Repeat("d", 36)}
	next := state{Token: strings.Repeat("e", 26), Program: strings.Repeat("f", 64), PID: 3999999, StartTicks: 1<<60 + 1, Boot: first.Boot}
	first.Sum, next.Sum = first.checksum(), next.checksum()
	var contents [][]byte
	for _, s := range []state{first, next} {
		assert.NoError(t, writeState(f, s))
		if got, err := p.readState(); err != nil || got != s {
			t.Errorf("got %+v, %v, want %+v", got, err, s)
		}
		contents = append(contents, contentOf(t, f))
	}
	for i := range stateSize {
		assert.NoError(t, os.WriteFile(p.File(stateFile), append(bytes.Clone(contents[1][:i]), contents[0][i:]...), 0o600))
		if s, err := p.readState(); err == nil && s != first && s != next {
			t.Fatalf("of the first %d bytes of one and the rest of another it has %+v", i, s)
		}
	}
	if info, err := f.Stat(); err != nil || info.Size() != stateSize {
		t.Errorf("its file is %+v, %v", info, err)
	}
	assert.ErrorSays(t, "a long state", writeState(f, state{Token: strings.Repeat("a", stateSize)}), "may have 1024")
}

// TestRoomOfNextProgram checks that the next version of the program gets the room that was taken for it, that one which
// has none is installed too, and that nothing else is left.
func TestRoomOfNextProgram(t *testing.T) {
	t.Parallel()
	dir, source := t.TempDir(), t.TempDir()+"/program"
	install := func(text string) (*Program, os.FileInfo, error) {
		t.Helper()
		room, missing := os.Stat(dir + "/" + roomFile)
		assert.NoError(t, os.WriteFile(source, []byte(text), 0o600))
		installed, err := InstallProgram(dir, source)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = installed.file.Close() })
		return installed, room, missing
	}
	first, _, missing := install("one")
	assert.ErrorIs(t, "the room before the first", missing, os.ErrNotExist)
	second, room, err := install(strings.Repeat("two", 3000))
	assert.NoError(t, err)
	used, err := second.file.Stat()
	if assert.NoError(t, err); !os.SameFile(room, used) || used.Size() != 9000 {
		t.Errorf("the second has not got the room, and has %d bytes", used.Size())
	}
	assert.NoError(t, os.Remove(dir+"/"+roomFile))
	_, _, missing = install("three")
	assert.ErrorIs(t, "the room before the third", missing, os.ErrNotExist)
	names, err := os.ReadDir(dir)
	if assert.NoError(t, errors.Join(err, first.file.Close())); len(names) != 2 {
		t.Errorf("left are %v", names)
	}
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
		"damaged":         {content: "x", pauses: settleTries, fails: true},
		"missing":         {fails: true},
		"no time is left": {content: "x", ends: true, pauses: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Place{Machine: machine.Machine{Path: t.TempDir()}}
			if c.content != "" {
				assert.NoError(t, os.WriteFile(p.File(stateFile), []byte(c.content), 0o600))
			}
			pauses := 0
			s, err := p.readSettled(func() bool {
				if pauses++; pauses == c.wholeAt {
					f, err := p.openState()
					assert.NoError(t, errors.Join(err, writeState(f, whole), f.Close()))
				}
				return !c.ends
			})
			if (err != nil) != c.fails || pauses != c.pauses || !c.fails && s.Token != whole.Token {
				t.Errorf("got %+v, %v after %d pauses, want %d", s, err, pauses, c.pauses)
			}
		})
	}
}

// endless is a program that ends its reader in the middle, by a panic or an error.
type endless struct {
	*bytes.Reader

	end func() error
}

func (e endless) Read(buffer []byte) (int, error) {
	if n, _ := e.Reader.Read(buffer); n > 0 {
		return n, nil
	}
	return 0, e.end()
}

// WriteTo keeps io.Copy from the WriteTo of the reader.
func (e endless) WriteTo(writer io.Writer) (int64, error) {
	return io.Copy(writer, struct{ io.Reader }{e})
}

// TestRoomSurvives checks that the room of the next version stays reserved when copying is killed or fails, and that
// files of earlier versions are removed. Without such a room nothing is left of a copy that fails.
func TestRoomSurvives(t *testing.T) {
	t.Parallel()
	failed := errors.New("no room")
	for name, c := range map[string]struct {
		end    func() error
		change func(path string) error
	}{
		"killed":        {end: func() error { panic("killed") }},
		"failed":        {end: func() error { return failed }},
		"killed at end": {end: func() error { panic("killed") }, change: func(path string) error { return os.Chmod(path, 0o555) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, source := t.TempDir(), t.TempDir()+"/program"
			install := func(text string) os.FileInfo {
				assert.NoError(t, os.WriteFile(source, []byte(text), 0o600))
				p, err := InstallProgram(dir, source)
				assert.NoError(t, err)
				info, err := p.file.Stat()
				assert.NoError(t, errors.Join(err, p.file.Close()))
				return info
			}
			copyPart := func() (err error) {
				defer func() { _ = recover() }()
				return copyProgram(endless{bytes.NewReader([]byte("tw")), c.end}, dir, dir+"/drover-machine-x")
			}
			_ = copyPart()
			if _, err := os.Stat(dir + "/" + roomFile); name == "failed" && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("without room is left %v", err)
			}
			install("one")
			room, err := os.Stat(dir + "/" + roomFile)
			assert.NoError(t, err)
			assert.NoError(t, os.WriteFile(dir+"/.new-left", nil, 0o600))
			_ = copyPart()
			if c.change != nil {
				assert.NoError(t, c.change(dir+"/"+roomFile))
			}
			if used := install("two"); !os.SameFile(room, used) || used.Size() != 3 {
				t.Errorf("the next has not got the room, and has %d bytes", used.Size())
			}
			if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
				t.Errorf("left are %v, %v", names, err)
			}
		})
	}
}
