// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/assert"
)

// writerEnv names the writer that TestWriter runs, and writerDir its folder.
const (
	writerEnv = "DROVER_POWERCUT_WRITER"
	writerDir = "DROVER_POWERCUT_WRITER_DIR"
)

// content is several sectors long.
var content = bytes.Repeat([]byte("content "), 200)

// writers replace the content of a file, more or less carefully.
var writers = map[string]func(dir string) error{
	"in place":           func(dir string) error { return write(filepath.Join(dir, "file"), false) },
	"synced in place":    func(dir string) error { return write(filepath.Join(dir, "file"), true) },
	"renamed":            func(dir string) error { return replace(dir, false, false) },
	"synced and renamed": func(dir string) error { return replace(dir, true, false) },
	"all synced":         func(dir string) error { return replace(dir, true, true) },
	"by its path": func(dir string) error {
		path := filepath.Join(dir, "file")
		return errors.Join(os.WriteFile(path, content, 0o600), os.Truncate(path, 1))
	},
	"statedir replaces": inStateDir(func(d *statedir.Dir) error { return d.Replace(d.Path("file"), content) }),
	"statedir creates":  inStateDir(func(d *statedir.Dir) error { return d.Create(d.Path("file"), content) }),
	"statedir installs": inStateDir(install),
}

func inStateDir(do func(*statedir.Dir) error) func(dir string) error {
	return func(dir string) error {
		d, err := statedir.Open("a driver's folder", dir)
		if err != nil {
			return err
		}
		return do(d)
	}
}

// install moves a folder with a file into place.
func install(d *statedir.Dir) error {
	made, remove, err := d.Temp()
	if err != nil {
		return err
	}
	defer remove()
	if err := write(filepath.Join(made, "file"), true); err != nil {
		return err
	}
	return d.Install(made, d.Path("installed"))
}

func write(path string, isSynced bool) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil && isSynced {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func replace(dir string, isFileSynced, isFolderSynced bool) error {
	if err := write(filepath.Join(dir, "new"), isFileSynced); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "file")); err != nil || !isFolderSynced {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// TestWriter runs a writer, in a process under strace.
func TestWriter(t *testing.T) {
	writer := writers[os.Getenv(writerEnv)]
	if writer == nil {
		t.Skip("TestStates runs it")
	}
	err := writer(os.Getenv(writerDir))
	Mark("written")
	assert.NoError(t, err)
}

// TestStates checks the risks of each writer: a file that exists but is empty or torn, and a file
// that is missing after the writer has ended.
func TestStates(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"in place":           "empty, lost, torn",
		"synced in place":    "empty, lost, torn",
		"renamed":            "empty, lost, torn",
		"synced and renamed": "lost",
		"all synced":         "",
		"statedir replaces":  "lost",
		"statedir creates":   "",
		"statedir installs":  "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			recording, err := recordWriter(t, name)
			assert.NoError(t, err)
			seen := map[string]bool{}
			assert.NoError(t, assert.ErrorOf(recording.States(Options{Random: 20, Seed: 1}, func(s State) error {
				seen[riskOf(s)] = true
				return nil
			})))
			assert.Equal(t, "the risks", listRisks(seen), want)
		})
	}
}

// TestUnknownCall checks that a change that the model does not know is an error.
func TestUnknownCall(t *testing.T) {
	t.Parallel()
	assert.ErrorIs(t, "got error", assert.ErrorOf(recordWriter(t, "by its path")), errUnknown)
}

// TestReadCalls checks which lines of strace are calls, and that an unknown line is an error.
func TestReadCalls(t *testing.T) {
	t.Parallel()
	var names []string
	err := readCalls(strings.NewReader("7 sync() = 0\n28564 ???(\n7  fsync(3<\\x2f>) = 0\n+++\n"), func(c call) error {
		names = append(names, c.name)
		return nil
	})
	want := []string{"sync", "fsync"}
	assert.True(t, slices.Equal(names, want) && err != nil, "got the calls %q and error %v, not %q and an error about the last line", names, err, want)
}

// recordWriter records one of the writers.
func recordWriter(t *testing.T, name string) (*Recording, error) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	assert.NoError(t, err)
	return Record(t.Context(), dir, os.Args[0], []string{"-test.run=^TestWriter$"}, []string{writerEnv + "=" + name, writerDir + "=" + dir})
}

func riskOf(s State) string {
	have, found := s.FileAt("file")
	if !found {
		have, found = s.FileAt("installed/file")
	}
	switch {
	case !found && len(s.Marks) > 0:
		return "lost"
	case !found || bytes.Equal(have, content):
		return ""
	case len(have) == 0:
		return "empty"
	}
	return "torn"
}

func listRisks(seen map[string]bool) string {
	var risks []string
	for _, risk := range []string{"empty", "lost", "torn"} {
		if seen[risk] {
			risks = append(risks, risk)
		}
	}
	return strings.Join(risks, ", ")
}
