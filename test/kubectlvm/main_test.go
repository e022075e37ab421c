// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectlvm tests the verbs of kubectl-vm on a real API server with a real
// controller, whose servers are simulated: the verbs see only API objects.
//
// Most tests share a cluster and a controller, and each uses a separate namespace.
package kubectlvm

import (
	"errors"
	"os"
	"testing"

	"cloudnative.tw/drover/test/framework/testenv"
)

// environment has one controller for all tests. Its simulated servers boot slowly enough that
// progress can be seen.
var environment *testenv.Environment

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, startEnvironment)) }

// settings are environment variables that verbs read. All tests share them, so that they can run in parallel.
var settings = map[string]string{"TERM": "xterm", "NO_COLOR": "1"}

func startEnvironment() (func() error, error) {
	env, stop, err := testenv.NewWithController("--vm-driver=fake", "--usage-period=1s", "--fake-boot-time=500ms")
	if err != nil {
		return nil, err
	}
	environment = env
	err = os.Setenv("KUBECONFIG", env.Kubeconfig) // completions cannot pass a flag
	for name, value := range settings {
		err = errors.Join(err, os.Setenv(name, value))
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}
