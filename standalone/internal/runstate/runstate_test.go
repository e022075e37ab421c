// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package runstate

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/standalone/internal/supervisor"
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

// wantComponents checks the components in the file, with the times that have passed.
func wantComponents(t *testing.T, path, text string) *State {
	t.Helper()
	s, err := Read(path)
	if err != nil || s == nil {
		t.Fatalf("got %v, %v", s, err)
	}
	var all []string
	for _, c := range s.Components {
		all = append(all, c.Name+" "+c.State+" "+c.Since.Sub(s.StartedAt).String())
	}
	if got := strings.Join(all, ", "); got != text {
		t.Errorf("got %q, want %q", got, text)
	}
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
	r.Begin("", flags, getenv, nil)
	s := wantComponents(t, path, "")
	if !reflect.DeepEqual(s.Environment, map[string]string{"DOCKER_HOST": "tcp://engine:1"}) {
		t.Errorf("environment %v", s.Environment)
	}
	if err := parsed.flags().Parse(s.Args); err != nil || !reflect.DeepEqual(parsed, given) {
		t.Errorf("%q give %+v, %v, want %+v", s.Args, parsed, err, given)
	}
}

// TestRecorder checks that the file shows each step of a run, with times.
func TestRecorder(t *testing.T) {
	r, clock, path := newRecorder(t)
	want := func(text string) *State {
		t.Helper()
		return wantComponents(t, path, text)
	}
	r.Begin("https://127.0.0.1:1", (&settings{}).flags(), os.Getenv, []supervisor.Component{{Name: "etcd"}, {Name: "api"}})
	s := want("etcd starting 0s, api waiting 0s")
	if s.Version != "v1" || s.PID != os.Getpid() || !s.StartedAt.Equal(clock.Now()) || !s.EndedAt.IsZero() || s.URL != "https://127.0.0.1:1" {
		t.Errorf("got %+v", s)
	}
	clock.Step(time.Second)
	r.Ready("etcd", 0)
	want("etcd ready 1s, api starting 1s")
	clock.Step(time.Second)
	r.Ready("api", 0)
	r.Ready("unknown", 0)
	r.SetDrivers([]string{"qemu", "fake"})
	r.SetEpoch(42)
	if s := want("etcd ready 1s, api ready 2s"); s.Epoch != 42 || !slices.Equal(s.Drivers, []string{"qemu", "fake"}) {
		t.Errorf("got %+v", s)
	}
	clock.Step(time.Second)
	r.Stopping()
	want("etcd stopping 3s, api stopping 3s")
	r.LeftBehind("api", 0)
	clock.Step(time.Second)
	r.Stopped("etcd", 0)
	r.End(errors.New("disk full"))
	if s := want("etcd stopped 4s, api left behind 3s"); !s.EndedAt.Equal(clock.Now()) || s.Failure != "disk full" || s.Epoch != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	if s, err := Read(filepath.Join(dir, "missing")); s != nil || err != nil {
		t.Errorf("got %v, %v", s, err)
	}
	assert.ErrorSays(t, "of a folder", assert.ErrorOf(Read(dir)), "not a regular file")
	path := filepath.Join(dir, "damaged")
	assert.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	assert.ErrorSays(t, "of a damaged file", assert.ErrorOf(Read(path)), "is damaged")
}

// TestFullDisk checks that a run goes on if the file cannot be written.
func TestFullDisk(*testing.T) {
	r := NewRecorder("v1", clocktesting.NewFakeClock(time.Unix(1000, 0)), func([]byte) error { return errors.New("full") })
	r.Begin("", (&settings{}).flags(), os.Getenv, nil)
	r.Stopping()
	r.End(nil)
}
