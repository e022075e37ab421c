// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectlvm tests the verbs of kubectl-vm on a real API server with a real
// controller, whose servers are simulated: the verbs see objects alone.
//
// Most tests share a cluster and a controller, each in another namespace.
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

// settings are the variables that verbs read, the same for all tests, which can be parallel then.
var settings = map[string]string{"TERM": "xterm", "NO_COLOR": "1"}

func startEnvironment() (func() error, error) {
	env, stop, err := testenv.NewWithController("--vm-driver=fake", "--usage-period=1s", "--fake-boot-time=500ms")
	if err != nil {
		return nil, err
	}
	environment = env
	err = os.Setenv("KUBECONFIG", env.Kubeconfig) // completions cannot have a flag
	for name, value := range settings {
		err = errors.Join(err, os.Setenv(name, value))
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}
