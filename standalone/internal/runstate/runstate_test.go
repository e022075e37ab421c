// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package runstate

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

type settings struct {
	dir   string
	dirs  []string
	limit int
	on    bool
}

func (s *settings) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringVar(&s.dir, "dir", "", "")
	fs.StringSliceVar(&s.dirs, "dirs", nil, "")
	fs.IntVar(&s.limit, "limit", 7, "")
	fs.BoolVar(&s.on, "on", false, "")
	return fs
}

// mustRead reads the file.
func mustRead(t *testing.T, path string) *State {
	t.Helper()
	s, err := Read(path)
	assert.Require(t, err == nil && s != nil, "got %v, %v", s, err)
	return s
}

// newRecorder returns a recorder, and the file that it writes.
func newRecorder(t *testing.T) (r *Recorder, clock *clocktesting.FakeClock, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state.json")
	clock = clocktesting.NewFakeClock(time.Unix(1000, 0).UTC())
	return NewRecorder("v1", clock, func(content []byte) error { return os.WriteFile(path, content, 0o600) }), clock, path
}

// TestRecordedSettings checks that the flags are the same after parsing, and that of the
// environment nothing is stored but what decides on the engine.
func TestRecordedSettings(t *testing.T) {
	r, _, path := newRecorder(t)
	var given, parsed settings
	flags := given.flags()
	assert.NoError(t, flags.Parse([]string{"--dir=/a b", "--dirs=/x", "--dirs=/y", "--on"}))
	getenv := func(name string) string {
		return map[string]string{"DOCKER_HOST": "tcp://engine:1", "PASSWORD": "secret"}[name]
	}
	r.Begin(flags, getenv)
	s := mustRead(t, path)
	assert.True(t, reflect.DeepEqual(s.Environment, map[string]string{"DOCKER_HOST": "tcp://engine:1"}), "environment %v", s.Environment)
	err := parsed.flags().Parse(s.Args)
	assert.True(t, err == nil && reflect.DeepEqual(parsed, given), "%q give %+v, %v, want %+v", s.Args, parsed, err, given)
}

// TestRecorder checks that the file shows each step of a run.
func TestRecorder(t *testing.T) {
	r, clock, path := newRecorder(t)
	r.Begin((&settings{}).flags(), os.Getenv)
	r.SetDrivers([]string{"qemu", "fake"})
	s := mustRead(t, path)
	if s.Version != "v1" || s.PID != os.Getpid() || !s.StartedAt.Equal(clock.Now()) || !s.EndedAt.IsZero() || s.Stopping || !slices.Equal(s.Drivers, []string{"qemu", "fake"}) {
		t.Errorf("got %+v", s)
	}
	clock.Step(time.Second)
	r.Stopping()
	assert.True(t, mustRead(t, path).Stopping, "it does not say that it stops")
	r.End(errors.New("disk full"))
	s = mustRead(t, path)
	assert.True(t, s.EndedAt.Equal(clock.Now()) && s.Failure == "disk full", "got %+v", s)
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	s, err := Read(filepath.Join(dir, "missing"))
	assert.True(t, s == nil && err == nil, "got %v, %v", s, err)
	assert.ErrorSays(t, "of a folder", assert.ErrorOf(Read(dir)), "not a regular file")
	path := filepath.Join(dir, "damaged")
	assert.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	assert.ErrorSays(t, "of a damaged file", assert.ErrorOf(Read(path)), "is damaged")
}

// TestFullDisk checks that a run goes on if the file cannot be written.
func TestFullDisk(*testing.T) {
	r := NewRecorder("v1", clocktesting.NewFakeClock(time.Unix(1000, 0)), func([]byte) error { return errors.New("full") })
	r.Begin((&settings{}).flags(), os.Getenv)
	r.Stopping()
	r.End(nil)
}
