// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests tests the installation of Drover in a cluster: the kustomizations of
// config/, the chart in charts/drover and the container image.
//
// rbac_test.go tests the controller's rights, account_test.go a controller that has only these
// rights, and users_test.go users with each role. values_test.go tests the values of the chart,
// render_test.go renders manifests, and apply_test.go applies them to a real kube-apiserver.
package manifests

import (
	"os"
	"testing"

	"cloudnative.tw/drover/test/framework/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, nil)) }
