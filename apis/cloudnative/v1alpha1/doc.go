// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API that users write: the VirtualMachine, its
// condition types and its reasons.
//
// Start with VirtualMachineSpec in types.go. All validation and defaulting
// stands in the markers there and ends up in the CRD; conditions.go holds the
// words that the status speaks.
//
// +k8s:deepcopy-gen=package
// +groupName=cloudnative.tw
package v1alpha1
