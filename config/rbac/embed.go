// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rbac carries the roles of people who use VirtualMachines, so that a program
// that runs a cluster of its own can install the same ones.
//
// Start with UserRoles. The other files of this folder concern the controller.
package rbac

import _ "embed"

// UserRoles are the ClusterRoles drover-view, drover-edit and drover-admin, as YAML.
//
//go:embed user_roles.yaml
var UserRoles []byte
