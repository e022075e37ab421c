// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 has the VirtualMachine, its condition types and its reasons.
//
// Start with VirtualMachineSpec in types.go. All validation and defaults are in
// the markers there, which generate the CRD; conditions.go has the condition
// types and reasons. Users read the comments of the types in kubectl explain and
// docs/api.md: notes that concern only the code stand apart from them.
//
// +k8s:deepcopy-gen=package
// +groupName=cloudnative.tw
package v1alpha1
