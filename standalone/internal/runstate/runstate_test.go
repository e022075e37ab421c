// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package runstate

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/standalone/internal/supervisor"
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

// TestRecorder checks that the file shows each step of a run, with times, and its settings.
func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0).UTC())
	r := NewRecorder("v1", clock, func(content []byte) error { return os.WriteFile(path, content, 0o600) })
	want := func(text string) *State {
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
	var given, parsed settings
	flags := given.flags()
	if err := flags.Parse([]string{"--dir=/a b", "--dirs=/x", "--dirs=/y", "--on"}); err != nil {
		t.Fatal(err)
	}
	getenv := func(name string) string {
		return map[string]string{"DOCKER_HOST": "tcp://engine:1", "PASSWORD": "secret"}[name]
	}
	r.Begin("https://127.0.0.1:1", flags, getenv, []supervisor.Component{{Name: "etcd"}, {Name: "api"}})
	s := want("etcd starting 0s, api waiting 0s")
	components := s.Components
	s.Components = nil
	args := s.Args
	s.Args = nil
	wantEqual(t, *s, State{
		Version: "v1", PID: os.Getpid(), StartedAt: clock.Now(), URL: "https://127.0.0.1:1",
		Environment: map[string]string{"DOCKER_HOST": "tcp://engine:1"},
	})
	wantEqual(t, len(components), 2)
	wantEqual(t, parsed.flags().Parse(args), nil)
	wantEqual(t, parsed, given)
	clock.Step(time.Second)
	r.Ready("etcd", 0)
	want("etcd ready 1s, api starting 1s")
	clock.Step(time.Second)
	r.Ready("api", 0)
	r.Ready("unknown", 0)
	r.SetDrivers([]string{"qemu", "fake"})
	r.SetEpoch(42)
	s = want("etcd ready 1s, api ready 2s")
	wantEqual(t, s.Epoch, 42)
	wantEqual(t, s.Drivers, []string{"qemu", "fake"})
	clock.Step(time.Second)
	r.Stopping()
	want("etcd stopping 3s, api stopping 3s")
	r.LeftBehind("api", 0)
	clock.Step(time.Second)
	r.Stopped("etcd", 0)
	r.End(errors.New("disk full"))
	s = want("etcd stopped 4s, api left behind 3s")
	wantEqual(t, s.EndedAt, clock.Now())
	wantEqual(t, s.Failure, "disk full")
	wantEqual(t, s.Epoch, 0)
}

func wantEqual[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	if s, err := Read(filepath.Join(dir, "missing")); s != nil || err != nil {
		t.Errorf("got %v, %v", s, err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("of a folder: %v", err)
	}
	path := filepath.Join(dir, "damaged")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "is damaged") {
		t.Errorf("of a damaged file: %v", err)
	}
}

// TestFullDisk checks that a run goes on if the file cannot be written.
func TestFullDisk(*testing.T) {
	r := NewRecorder("v1", clocktesting.NewFakeClock(time.Unix(1000, 0)), func([]byte) error { return errors.New("full") })
	r.Begin("", (&settings{}).flags(), os.Getenv, nil)
	r.Stopping()
	r.End(nil)
}
