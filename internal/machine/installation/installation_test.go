// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestRoomOfNextProgram checks that the next version of the program gets the room that was taken for it, that one which
// has none is installed too, and that nothing else is left.
func TestRoomOfNextProgram(t *testing.T) {
	t.Parallel()
	dir, source := t.TempDir(), t.TempDir()+"/program"
	install := func(text string) (*Program, os.FileInfo, error) {
		t.Helper()
		room, missing := os.Stat(dir + "/" + reserveFile)
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
	assert.NoError(t, os.Remove(dir+"/"+reserveFile))
	_, _, missing = install("three")
	assert.ErrorIs(t, "the room before the third", missing, os.ErrNotExist)
	names, err := os.ReadDir(dir)
	if assert.NoError(t, errors.Join(err, first.file.Close())); len(names) != 2 {
		t.Errorf("left are %v", names)
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
			if _, err := os.Stat(dir + "/" + reserveFile); name == "failed" && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("without room is left %v", err)
			}
			install("one")
			room, err := os.Stat(dir + "/" + reserveFile)
			assert.NoError(t, err)
			assert.NoError(t, os.WriteFile(dir+"/.new-left", nil, 0o600))
			_ = copyPart()
			if c.change != nil {
				assert.NoError(t, c.change(dir+"/"+reserveFile))
			}
			used := install("two")
			assert.True(t, os.SameFile(room, used) && used.Size() == 3, "the next has not got the room, and has %d bytes", used.Size())
			names, err := os.ReadDir(dir)
			assert.True(t, err == nil && len(names) == 2, "left are %v, %v", names, err)
		})
	}
}
