// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func envOf(pairs ...string) (env []driver.EnvVar) {
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		env = append(env, driver.EnvVar{Name: name, Value: driver.NewSecret(value)})
	}
	return env
}

// TestCommandChanged checks that a change makes another container at the next start, that the order of
// variables does not matter, and that no label has a value, or a hash of one.
func TestCommandChanged(t *testing.T) {
	t.Parallel()
	d, spec := newServer(t, guestImages(t).plain)
	spec.Env, spec.WorkingDir = envOf("A=secret", "B=2"), "/"
	first := ensureState(t, d, spec, driver.StateRunning)
	for label, value := range inspectRaw(t, first.ID).Config.Labels {
		assert.True(t, !strings.Contains(value, "secret") && (label != process.LabelEnv || value == "A=B"), "label %s is %q", label, value)
	}
	slices.Reverse(spec.Env)
	if s := ensureState(t, d, spec, driver.StateRunning); len(s.Pending) > 0 {
		t.Errorf("pending is %v", s.Pending)
	}
	spec.Env, spec.Args, spec.WorkingDir = envOf("A=other"), []string{"x"}, ""
	s := ensureState(t, d, spec, driver.StateRunning)
	want := []string{"args", "env", "workingDir"}
	assert.True(t, slices.Equal(s.Pending, want) && s.Run == first.Run, "pending is %v, want %v; the run is %s, and was %s", s.Pending, want, s.Run, first.Run)
	lacking := spec
	lacking.PowerOnly, lacking.Env, lacking.Power = true, nil, driver.PowerPaused
	s = ensureState(t, d, lacking, driver.StatePaused)
	assert.True(t, len(s.Pending) == 0 && s.ID == first.ID, "by its power alone, pending is %v, and container %s was %s", s.Pending, s.ID, first.ID)
	spec.RestartRun = first.Run
	s = ensureState(t, d, spec, driver.StateRunning)
	assert.True(t, s.ID != first.ID && len(s.Pending) == 0, "after a restart, pending is %v, and container %s was %s", s.Pending, s.ID, first.ID)
	in := inspectRaw(t, s.ID).Config
	assert.True(t, slices.Contains(in.Env, "A=other") && slices.Equal(in.Cmd, spec.Args) && !slices.Contains(in.Env, "B=2"), "it has %+v", in)
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
		`spec.command: the program "/nope" does not exist in image ` + g.plain: {g.plain, func(s *driver.ServerSpec) { s.Command = []string{"/nope"} }},
		`spec.command: the program "nope" is in no folder of PATH`:             {g.plain, func(s *driver.ServerSpec) { s.Command, s.Args = []string{"nope"}, []string{"x"} }},
		`spec.args: the program "nope" is in no folder of PATH`:                {bare, func(s *driver.ServerSpec) { s.Args = []string{"nope"} }},
		`does not name a command to run: set spec.command or spec.args`:        {bare, func(*driver.ServerSpec) {}},
		`spec.workingDir: /demo-guest cannot be entered`:                       {g.plain, func(s *driver.ServerSpec) { s.WorkingDir = "/demo-guest" }},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			d, spec := newServer(t, c.image)
			c.change(&spec)
			wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), driver.ErrInvalid, "", want)
			all := mustList(t, d, spec.UID)
			assert.True(t, len(all) == 0, "it left %+v", all)
		})
	}
}
