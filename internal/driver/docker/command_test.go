// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// jobImage imports an image whose entrypoint runs a script, with a default one, an environment and a
// working directory of its own.
func jobImage(t *testing.T) string {
	t.Helper()
	g := guestImages(t)
	rootfs, err := shellArchive(t.Context(), g.rootfs)
	assert.NoError(t, err)
	image := "drover-test:job-" + randomText()
	assert.NoError(t, framework.ImportImage(t.Context(), g.client, rootfs, image,
		`ENTRYPOINT ["/bin/sh", "-c"]`, `CMD ["echo image $A $B $PWD"]`, "ENV A=1 B=2", "WORKDIR /bin", "LABEL "+process.LabelEnv+"=A"))
	t.Cleanup(func() {
		_, _ = g.client.ImageRemove(context.WithoutCancel(t.Context()), image, client.ImageRemoveOptions{Force: true})
	})
	return image
}

func envOf(pairs ...string) (env []driver.EnvVar) {
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		env = append(env, driver.EnvVar{Name: name, Value: driver.NewSecret(value)})
	}
	return env
}

// readEnd waits until a server has ended, and returns how, and what it has printed.
func readEnd(t *testing.T, d *Driver, spec driver.ServerSpec) (*driver.Exit, string) {
	t.Helper()
	s := awaitListed(t, d, spec.UID, "its end", func(s driver.Server) bool { return s.State == driver.StateStopped })
	log, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{})
	assert.NoError(t, err)
	text, err := io.ReadAll(log)
	assert.NoError(t, err)
	assert.NoError(t, log.Close())
	return s.Exit, string(text)
}

// TestCommand checks that command, args, env and workingDir take the place of the image's as in a pod,
// and that a job runs once, however soon it ends.
func TestCommand(t *testing.T) {
	t.Parallel()
	image := jobImage(t)
	script := func(text string) []string { return []string{"/bin/sh", "-c", text} }
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		want   string
		code   int
	}{
		"the image's own": {func(*driver.ServerSpec) {}, "image 1 2 /bin\n", 0},
		"args":            {func(s *driver.ServerSpec) { s.Args = []string{"echo args $0", "x"} }, "args x\n", 0},
		"command":         {func(s *driver.ServerSpec) { s.Command = []string{"/bin/env"} }, "", 0},
		"command and args": {func(s *driver.ServerSpec) {
			s.Command, s.Args = []string{"/bin/sh"}, []string{"-c", `echo "$0" '$(A)' "$A"`, "$(A) x"}
		}, "$(A) x $(A) 1\n", 0},
		"env": {func(s *driver.ServerSpec) {
			s.Env, s.Args = envOf("B=two lines\nhere", "C= é=x", "D="), []string{`echo "$A|$B|$C|$D|${D+set}"`}
		}, "1|two lines\nhere| é=x||set\n", 0},
		"workingDir":  {func(s *driver.ServerSpec) { s.WorkingDir = "/" }, "image 1 2 /\n", 0},
		"a code":      {func(s *driver.ServerSpec) { s.Command = script("exit 3") }, "", 3},
		"a long list": {func(s *driver.ServerSpec) { s.Command, s.Args = script(`echo $#`), slices.Repeat([]string{"x"}, 256) }, "255\n", 0},
		"a long text": {func(s *driver.ServerSpec) {
			s.Command, s.Args = script(`echo ${#0}`), []string{strings.Repeat("x", 131071)}
		}, "131071\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, spec := newServer(t, image)
			c.change(&spec)
			assert.NoError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)))
			exit, text := readEnd(t, d, spec)
			if exit == nil || exit.Code != c.code {
				t.Errorf("it ended as %+v, want code %d", exit, c.code)
			}
			if c.want != "" && text != c.want {
				t.Errorf("it printed %q, want %q", text, c.want)
			}
		})
	}
}

// TestCommandChanged checks that a change makes another container at the next start, that the order of
// variables is no change, and that no label has a value, or a hash of one.
func TestCommandChanged(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.Env, spec.WorkingDir = envOf("A=secret", "B=2"), "/"
	first := ensureState(t, d, spec, driver.StateRunning)
	for label, value := range inspectRaw(t, first.ID).Config.Labels {
		if strings.Contains(value, "secret") || label == process.LabelEnv && value != "A=B" {
			t.Errorf("label %s is %q", label, value)
		}
	}
	slices.Reverse(spec.Env)
	if s := ensureState(t, d, spec, driver.StateRunning); len(s.Pending) > 0 {
		t.Errorf("pending is %v", s.Pending)
	}
	spec.Env, spec.Args, spec.WorkingDir = envOf("A=other"), []string{"x"}, ""
	s := ensureState(t, d, spec, driver.StateRunning)
	if want := []string{"args", "env", "workingDir"}; !slices.Equal(s.Pending, want) || s.Run != first.Run {
		t.Errorf("pending is %v, want %v; the run is %s, and was %s", s.Pending, want, s.Run, first.Run)
	}
	lacking := spec
	lacking.PowerOnly, lacking.Env, lacking.Power = true, nil, driver.PowerPaused
	if s = ensureState(t, d, lacking, driver.StatePaused); len(s.Pending) > 0 || s.ID != first.ID {
		t.Errorf("by its power alone, pending is %v, and container %s was %s", s.Pending, s.ID, first.ID)
	}
	spec.RestartRun = first.Run
	s = ensureState(t, d, spec, driver.StateRunning)
	if s.ID == first.ID || len(s.Pending) > 0 {
		t.Errorf("after a restart, pending is %v, and container %s was %s", s.Pending, s.ID, first.ID)
	}
	if in := inspectRaw(t, s.ID).Config; !slices.Contains(in.Env, "A=other") || !slices.Equal(in.Cmd, spec.Args) || slices.Contains(in.Env, "B=2") {
		t.Errorf("it has %+v", in)
	}
}

// TestBadCommand checks that what the spec names and the image does not have is reported by its field.
func TestBadCommand(t *testing.T) {
	t.Parallel()
	g := guestImages(t)
	bare := "drover-test:bare-" + randomText()
	assert.NoError(t, framework.ImportImage(t.Context(), g.client, g.rootfs, bare))
	t.Cleanup(func() {
		_, _ = g.client.ImageRemove(context.WithoutCancel(t.Context()), bare, client.ImageRemoveOptions{Force: true})
	})
	for want, c := range map[string]struct {
		image  string
		change func(*driver.ServerSpec)
	}{
		`spec.command: the program "/nope" does not exist in it, image ` + g.plain: {g.plain, func(s *driver.ServerSpec) { s.Command = []string{"/nope"} }},
		`spec.command: the program "nope" is in no folder of its PATH`:             {g.plain, func(s *driver.ServerSpec) { s.Command, s.Args = []string{"nope"}, []string{"x"} }},
		`spec.args: the program "nope" is in no folder of its PATH`:                {bare, func(s *driver.ServerSpec) { s.Args = []string{"nope"} }},
		`has no command to run: set spec.command or spec.args`:                     {bare, func(*driver.ServerSpec) {}},
		`spec.workingDir: /demo-guest cannot be entered`:                           {g.plain, func(s *driver.ServerSpec) { s.WorkingDir = "/demo-guest" }},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d, spec := newServer(t, c.image)
			c.change(&spec)
			wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrInvalid, "", want)
			if all := mustList(t, d, spec.UID); len(all) != 0 {
				t.Errorf("it left %+v", all)
			}
		})
	}
}
