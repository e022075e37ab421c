// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 has the VirtualMachine, its condition types and its reasons.
//
// Start with VirtualMachineSpec in types.go. All validation and defaults are in
// the markers there, which generate the CRD; conditions.go has the condition
// types and reasons. The comments of the types are what users read in kubectl
// explain and docs/api.md: what concerns the code only stands apart from them.
//
// +k8s:deepcopy-gen=package
// +groupName=cloudnative.tw
package v1alpha1
