// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nextrelease

// A build with the tag nextrelease stands for the release after this one, for tests of upgrades and of the way back.
// Its records have a field more, and with the variables below in its environment also what an earlier version refuses.

package format

import (
	"bytes"
	"encoding/json"
	"os"
)

// Variables of the environment.
const (
	// MustUnderstandVariable is a text: records that have it get NextAddition in mustUnderstand.
	MustUnderstandVariable = "DROVER_NEXT_MUST_UNDERSTAND"
	// RaiseVariable is set if folders get a data version that earlier versions do not read.
	RaiseVariable = "DROVER_NEXT_DATA_VERSION"
)

// NextAddition is the name of the field, and of the addition in mustUnderstand.
const NextAddition = "nextRelease"

const extraVersions = 1

func init() { understood[NextAddition] = true }

// addNextFields adds the field, and the name if the variable says so.
func addNextFields(text []byte) ([]byte, error) {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	fields[NextAddition] = map[string]string{"writtenBy": Version}
	if part := os.Getenv(MustUnderstandVariable); part != "" && bytes.Contains(text, []byte(part)) {
		fields["mustUnderstand"].(map[string]any)[NextAddition] = Version
	}
	return json.MarshalIndent(fields, "", "  ")
}

// NeededVersion is the DataVersion that a program needs to read what this one writes in every folder.
func NeededVersion() int {
	if os.Getenv(RaiseVariable) != "" {
		return DataVersion
	}
	return firstVersion
}
