// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// testHostileNames uses names that Kubernetes allows and that would clash or be invalid if a
// driver just joined namespace and name.
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
	ids := newStringSet()
	for i, name := range names {
		specs[i] = e.nameSpec(e.Spec(t), name[0], name[1])
		s := e.ensureState(t, e.stopSpec(specs[i]), driver.StateStopped)
		ids.add(s.ID)
		assert.True(t, s.Namespace == name[0] && s.Name == name[1], "got the name %s/%s, want %s/%s", s.Namespace, s.Name, name[0], name[1])
	}
	n := len(ids.values())
	assert.True(t, n == len(names), "%d names gave %d servers", len(names), n)
	wantUIDs(t, "List of all", listServers(t, e.driver), specs)
	e.deleteUntilGone(t, e.driver, specs[0].UID)
	wantUIDs(t, "List after the first was deleted", listServers(t, e.driver), specs[1:])
}

// testSecrets checks that SSH keys, userData and networkData may contain any characters, and
// that the data is not visible. A driver may refuse the fields without showing their content.
func testSecrets(t *testing.T, e *env) {
	mark := "s3cr3t-" + string(newUID())
	odd := "\n\"';$(reboot)`reboot` %s %d ../.. \\ \x7f é 漢 " + mark + "\n"
	spec := e.newSpec(t, "secretive")
	spec.UserData, spec.NetworkData = driver.NewSecret("#cloud-config"+odd), driver.NewSecret(odd)
	spec.SSHKeys = []string{"ssh-ed25519 AAAA odd\"'$(reboot)`x` %s key@" + strings.Repeat("x", 300)}
	s := e.ensureSupported(t, spec, mark)
	wantConcealed(t, "the error for a bad spec", e.ensureInvalid(t, spec), mark)
	wantConcealed(t, "the server", s, mark)
	for _, listed := range listServers(t, e.driver) {
		wantConcealed(t, "the listed server", listed, mark)
		if e.Visible != nil {
			wantConcealed(t, "the server's data that other users can read", e.Visible(t, listed), mark)
		}
	}
}

// ensureSupported makes the server run, without the fields that the driver does not
// support.
func (e *env) ensureSupported(t *testing.T, spec driver.ServerSpec, mark string) driver.Server {
	t.Helper()
	err := errorAfterRetries(t, "Ensure", driver.ErrUnsupported, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) })
	if errors.Is(err, driver.ErrUnsupported) {
		wantConcealed(t, "the refusal", err, mark)
		spec.UserData, spec.NetworkData, spec.SSHKeys = driver.Secret{}, driver.Secret{}, nil
	}
	return e.ensureState(t, spec, driver.StateRunning)
}

// ensureInvalid makes a spec that contains secrets invalid, and returns the error of Ensure.
func (e *env) ensureInvalid(t *testing.T, spec driver.ServerSpec) error {
	t.Helper()
	spec.Target = driver.Target{UID: newUID()}
	spec.Image.Source = "::: no such form of image :::"
	spec.Power = "Sideways"
	err := errorAfterRetries(t, "Ensure", driver.ErrUnsupported, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) })
	assert.True(t, isFinal(err), "Ensure with power %q and image %q: got error %v, want the kind invalid or unsupported", spec.Power, spec.Image.Source, err)
	return err
}

func wantConcealed(t *testing.T, subject string, value any, mark string) {
	t.Helper()
	encoded, err := json.Marshal(value)
	assert.NoError(t, err)
	text := fmt.Sprintf("%v %+v %#v %s", value, value, value, encoded)
	assert.True(t, !strings.Contains(text, mark), "%s shows the secret", subject)
}
