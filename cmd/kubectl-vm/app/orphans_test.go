// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

// TestRemovalOf checks that the advice names the folder of a released machine, never that of a
// machine with its UID that is managed, and that no engine's words are run by a shell.
func TestRemovalOf(t *testing.T) {
	t.Parallel()
	for driver, want := range map[string]string{
		"docker": `docker rm --force --volumes -- 'i'\''d'`,
		"qemu":   `in --qemu-dir: sudo pkill --full --pidfile './retained/u1.i'\''d/pid' -- '-uuid u1'; sudo rm -r './retained/u1.i'\''d'`,
		"fake":   "remove fake server i'd of n/a",
	} {
		s := servers.Server{Driver: driver, Server: streams.Server{UID: "u1", ID: "i'd", Namespace: "n", Name: "a"}}
		if got := removalOf(s); got != want {
			t.Errorf("%s: got %s, want %s", driver, got, want)
		}
	}
}
