// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nextrelease

package format

// extraVersions is for a build with the tag nextrelease.
const extraVersions = 0

// addNextFields returns the text of a record as it is.
func addNextFields(text []byte) ([]byte, error) { return text, nil }

// NeededVersion is the DataVersion that a program needs to read what this one writes in every folder.
func NeededVersion() int { return firstVersion }
