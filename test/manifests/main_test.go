// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests tests what runs Drover in a cluster: the kustomizations of
// config/, the chart in charts/drover and the container image.
//
// Start with rbac_test.go for the rights that they give the controller, account_test.go for a
// controller that has only these rights, and users_test.go for people with each role.
// values_test.go has the values of the chart, render_test.go renders, and apply_test.go
// applies to a real kube-apiserver.
package manifests

import (
	"os"
	"testing"

	"cloudnative.tw/drover/test/framework/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, nil)) }
