// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectlvm tests the verbs of kubectl-vm on a real API server with a real
// controller, whose servers are simulated: the verbs see objects alone.
//
// Most tests share a cluster and a controller, with namespaces of their own.
package kubectlvm

import (
	"errors"
	"os"
	"testing"

	"cloudnative.tw/drover/test/framework/testenv"
)

// environment has one controller for all tests. Its servers take a moment to boot, so that
// progress can be seen.
var environment *testenv.Environment

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, startEnvironment)) }

func startEnvironment() (func() error, error) {
	env, err := testenv.New()
	if err != nil {
		return nil, err
	}
	controller, err := env.StartController("--vm-driver=fake", "--usage-period=1s", "--fake-boot-time=500ms")
	if err != nil {
		return nil, errors.Join(err, env.Close())
	}
	environment = env
	return func() error { return errors.Join(controller.Stop(), env.Close()) }, nil
}
