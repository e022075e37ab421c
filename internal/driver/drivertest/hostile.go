// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// contextOver returns a context that has been cancelled.
func contextOver(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx, cancel
}

// interrupt calls Ensure and cancels it after a while.
func (e *env) interrupt(t *testing.T, spec driver.ServerSpec, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	began := e.clock.Now()
	if _, err := e.d.Ensure(ctx, spec); err != nil && final(err) {
		t.Fatalf("Ensure, interrupted: got the final error %v", err)
	}
	if took := e.clock.Since(began); took > after+5*time.Second {
		t.Errorf("Ensure returned %v after its context had ended", took-after)
	}
}

// testHostileNames uses names that Kubernetes allows and that would clash or be invalid
// if a driver built its own names from them naively.
func testHostileNames(t *testing.T, e *env) {
	names := [][2]string{
		{"c", "a-b"},
		{"b-c", "a"},
		{"b", "a"},
		{"a", "a.b"},
		{"a", "a.b.c-1.example.org"},
		{strings.Repeat("n", 63), strings.Repeat("v", 63)},
		{strings.Repeat("n", 63), strings.Repeat("v", 62) + "w"},
		{"0", "0"},
		{"kube-system", "test-vm"},
		{"default", "test-vm"},
	}
	specs := make([]driver.ServerSpec, len(names))
	ids := newSet()
	for i, name := range names {
		specs[i] = e.named(e.Spec(t), name[0], name[1])
		s := e.reach(t, e.off(specs[i]), driver.StateStopped)
		ids.add(s.ID)
		if s.Namespace != name[0] || s.Name != name[1] {
			t.Errorf("got the name %s/%s, want %s/%s", s.Namespace, s.Name, name[0], name[1])
		}
	}
	if n := len(ids.list()); n != len(names) {
		t.Errorf("%d names gave %d servers", len(names), n)
	}
	wantUIDs(t, "List of all", list(t, e.d), specs)
	e.gone(t, e.d, specs[0].UID)
	wantUIDs(t, "List after the first was deleted", list(t, e.d), specs[1:])
}

// testSecrets checks that unusual keys and data break nothing, and that the data is not
// visible. A driver may refuse the fields, but must not reveal their content.
func testSecrets(t *testing.T, e *env) {
	mark := "s3cr3t-" + string(newUID())
	odd := "\n\"';$(reboot)`reboot` %s %d ../.. \\ \x7f é 漢 " + mark + "\n"
	spec := e.spec(t, "secretive")
	spec.UserData, spec.NetworkData = driver.NewSecret("#cloud-config"+odd), driver.NewSecret(odd)
	spec.SSHKeys = []string{"ssh-ed25519 AAAA odd\"'$(reboot)`x` %s key@" + strings.Repeat("x", 300)}
	s := e.reachOrRefuse(t, spec, mark)
	conceals(t, "the error for a bad spec", e.badSpec(t, spec), mark)
	conceals(t, "the server", s, mark)
	for _, listed := range list(t, e.d) {
		conceals(t, "the server listed", listed, mark)
		if e.Visible != nil {
			conceals(t, "what others see of the server", e.Visible(t, listed), mark)
		}
	}
}

// reachOrRefuse makes the server run, without the fields that the driver does not support.
func (e *env) reachOrRefuse(t *testing.T, spec driver.ServerSpec, mark string) driver.Server {
	t.Helper()
	_, err := e.d.Ensure(t.Context(), spec)
	if errors.Is(err, driver.ErrUnsupported) {
		conceals(t, "the refusal", err, mark)
		spec.UserData, spec.NetworkData, spec.SSHKeys = driver.Secret{}, driver.Secret{}, nil
	}
	return e.reach(t, spec, driver.StateRunning)
}

// badSpec provokes an error about a spec that contains secrets.
func (e *env) badSpec(t *testing.T, spec driver.ServerSpec) error {
	t.Helper()
	spec.Target = driver.Target{UID: newUID()}
	spec.Image.Source = "::: no such form of image :::"
	spec.Power = "Sideways"
	_, err := e.d.Ensure(t.Context(), spec)
	if !final(err) {
		t.Errorf("Ensure with power %q and image %q: got error %v, want the kind invalid or unsupported", spec.Power, spec.Image.Source, err)
	}
	return err
}

func conceals(t *testing.T, what string, value any, mark string) {
	t.Helper()
	encoded, err := json.Marshal(value)
	must(t, "encoding "+what, err)
	text := fmt.Sprintf("%v %+v %#v %s", value, value, value, encoded)
	if strings.Contains(text, mark) {
		t.Errorf("%s shows the secret", what)
	}
}
