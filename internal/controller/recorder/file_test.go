// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
	"cloudnative.tw/drover/internal/policy/policytest"
	"cloudnative.tw/drover/test/assert"
)

// written runs what records into a file, and waits until all is written.
func written(t *testing.T, f *File, play func(*Recorder)) {
	t.Helper()
	r := newRecorder()
	r.File = f
	play(r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, f.Start(ctx))
}

func newFile(path string) *File {
	return NewFile(path, logr.Discard(), testingclock.NewFakeClock(policytest.T0))
}

func read(t *testing.T, path string) decisions.File {
	t.Helper()
	text, err := os.ReadFile(path)
	assert.NoError(t, err)
	f, err := decisions.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return f
}

// TestFile writes decisions and their outcomes with two processes one after the other, the
// first of which is killed in a line.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "decisions")
	assert.NoError(t, os.WriteFile(path, nil, 0o644))
	play := func(r *Recorder) {
		record(r, "vm", policytest.Gone(), 0)
		r.Finish(key, decisions.Outcome{At: policytest.T0, Result: decisions.Failed, Error: "boom"})
		for range 3 {
			record(r, "vm", policytest.Present(policy.StateRunning), time.Second)
		}
		record(r, "vm", policytest.Gone(), time.Minute)
	}
	written(t, newFile(path), play)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, text[:len(text)-10], 0o600)
	}
	assert.NoError(t, err)
	written(t, newFile(path), func(r *Recorder) {
		r.Replica = "second"
		play(r)
	})
	f := read(t, path)
	if len(f.Records) != 5 || f.Broken != 1 {
		t.Fatalf("there are %d decisions and %d broken lines", len(f.Records), f.Broken)
	}
	for n, want := range []struct {
		replica string
		result  decisions.Result
		repeats int
	}{{"r", decisions.Failed, 0}, {"r", "", 2}, {"second", decisions.Failed, 0}, {"second", "", 2}, {"second", "", 0}} {
		got := f.Records[n]
		if got.Replica != want.replica || got.Outcome.Result != want.result || got.Repeats != want.repeats {
			t.Errorf("decision %d is %+v, want %+v", n, got, want)
		}
		if differences := got.Replay(); len(differences) > 0 {
			t.Errorf("%+v", differences)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", err, info.Mode())
	}
}

// TestFileIsBounded checks that a file makes room for a new one, once.
func TestFileIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "decisions")
	f := newFile(path)
	f.maxBytes = 10 << 10
	written(t, f, func(r *Recorder) {
		for n := range 100 {
			record(r, "vm", policytest.Unknown(time.Duration(n)*time.Minute), 0)
		}
	})
	last := read(t, path).Records
	before := read(t, path+".1").Records
	if last[len(last)-1].Sequence != 100 || before[len(before)-1].Sequence+1 != last[0].Sequence {
		t.Errorf("the files end with %d and %d", before[len(before)-1].Sequence, last[len(last)-1].Sequence)
	}
	for _, p := range []string{path, path + ".1"} {
		if info, err := os.Stat(p); err != nil || info.Size() > f.maxBytes {
			t.Errorf("%v, %d bytes", err, info.Size())
		}
	}
	if entries, _ := filepath.Glob(path + "*"); len(entries) != 2 {
		t.Errorf("there are %v", entries)
	}
}

// TestFileFails checks that an error is logged once, disturbs nothing, and that writing goes on
// once the file can be opened.
func TestFileFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	clock := testingclock.NewFakeClock(policytest.T0)
	for name, bad := range map[string]func(path string) error{
		"a folder":         func(p string) error { return os.Mkdir(p, 0o700) },
		"a link":           func(p string) error { return os.Symlink(filepath.Join(dir, "target"), p) },
		"a missing folder": func(string) error { return nil },
	} {
		log.Reset()
		path := filepath.Join(dir, name)
		if name == "a missing folder" {
			path = filepath.Join(path, "decisions")
		}
		assert.NoError(t, bad(path))
		f := NewFile(path, funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}), clock)
		many := func(r *Recorder) {
			for n := range 10 {
				record(r, "vm", policytest.Unknown(time.Duration(n)*time.Minute), 0)
			}
		}
		written(t, f, many)
		if n := strings.Count(log.String(), "are not written"); n != 1 {
			t.Errorf("%s: the log is %s", name, log.String())
		}
		_ = os.Remove(path)
		_ = os.MkdirAll(filepath.Dir(path), 0o700)
		written(t, f, many)
		clock.Step(retryPeriod)
		written(t, f, many)
		if n := len(read(t, path).Records); n != 10 || !strings.Contains(log.String(), `"lost"=20`) {
			t.Errorf("%s: %d decisions are written; the log is %s", name, n, log.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "target")); err == nil {
		t.Error("a link was followed")
	}
}

// TestForeignFiles checks that nothing is written to a file of another user, and to none that has
// another name.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, prepare := range map[string]func(path string) error{
		"a hard link":    func(p string) error { return os.Link(p, p+".2") },
		"another user's": func(p string) error { return os.Chown(p, 12345, -1) },
	} {
		path := filepath.Join(dir, name)
		err := os.WriteFile(path, nil, 0o644)
		if err == nil {
			err = prepare(path)
		}
		if errors.Is(err, os.ErrPermission) {
			continue // only root gives files away
		}
		assert.NoError(t, err)
		f := newFile(path)
		written(t, f, func(r *Recorder) { record(r, "vm", policytest.Gone(), 0) })
		if info, err := os.Stat(path); err != nil || info.Size() > 0 || info.Mode().Perm() != 0o644 || !f.failed {
			t.Errorf("%s: it was written to: %v %v", name, info, err)
		}
	}
}

// TestFullQueue records more than the disk takes: nothing blocks.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	r.File = newFile(filepath.Join(t.TempDir(), "decisions"))
	for n := range maxQueued + 100 { // nothing writes
		record(r, "vm", policytest.Unknown(time.Duration(n)*time.Minute), 0)
	}
	if len(r.File.queue) != maxQueued || len(r.History(key).Decisions) != maxPerVM {
		t.Errorf("%d lines wait, %d decisions are in memory", len(r.File.queue), len(r.History(key).Decisions))
	}
}

// TestFullDisk writes to a device that is always full.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	f := newFile("unused")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	assert.NoError(t, err)
	f.file = full
	written(t, f, func(r *Recorder) { record(r, "vm", policytest.Gone(), 0) })
	if !f.failed || f.file != nil {
		t.Error("the error was not noticed")
	}
}
