// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"encoding/hex"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// seedOf returns what cloud-init reads. The instance ID is the server's UID, so cloud-init
// does its once-only tasks once per server.
func seedOf(spec driver.ServerSpec) machine.Seed {
	return machine.Seed{
		InstanceID: string(spec.UID), Hostname: spec.Name, SSHKeys: spec.SSHKeys,
		UserData: spec.UserData.Reveal(), NetworkData: spec.NetworkData.Reveal(),
	}
}

// hashSecret returns a value by which two secrets can be compared without keeping them.
func hashSecret(s driver.Secret) string {
	if s.IsZero() {
		return ""
	}
	sum := sha256.Sum256([]byte(s.Reveal()))
	return hex.EncodeToString(sum[:])
}
