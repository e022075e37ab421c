// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crd carries the generated CustomResourceDefinition, so that a
// program can install the API that it was built with, or compare it with a server's.
//
// Start with VirtualMachine, and with FindMissing in compare.go. The YAML beside this file
// comes from the markers in apis/cloudnative/v1alpha1; change those, not the YAML.
package crd

import _ "embed"

// VirtualMachine is the CustomResourceDefinition of VirtualMachines, as YAML.
//
//go:embed cloudnative.tw_virtualmachines.yaml
var VirtualMachine []byte
