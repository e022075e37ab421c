// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests the main job end to end on real parts: a user
// applies a VirtualMachine to a real kube-apiserver and a server runs for it, is
// reported, kept and removed.
//
// Most tests share a cluster and a controller, with namespaces of their own.
// What goes wrong around Drover is for test/outage.
package integration

import (
	"errors"
	"os"
	"testing"

	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

// world has one controller for all tests. Its orphan sweep is as quick as it
// can be, so that all tests would notice if it touched what it must not. It does
// not list the engines but when it starts, so that what is done by hand is seen
// because the engines tell of it.
var world *rig.World

func TestMain(m *testing.M) { os.Exit(rig.Main(m, startWorld)) }

func startWorld() (func() error, error) {
	if _, err := vmtest.OpenDocker(); err != nil {
		return nil, err
	}
	w, err := rig.NewWorld()
	if err != nil {
		return nil, err
	}
	controller, err := w.RunLocal("--usage-period=2s", "--orphan-grace=2s", "--list-period=1h")
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	world = w
	return func() error { return errors.Join(controller.Stop(), w.Close()) }, nil
}
