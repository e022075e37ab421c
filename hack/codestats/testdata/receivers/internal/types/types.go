// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package types has types with 30 and 31 methods.
package types

import (
	"strings"

	"example.com/receivers/internal/lent"
)

// Small has 9 methods, 20 of lent.Methods and one of lent.Reader.
type Small struct {
	lent.Methods
	lent.Reader
	strings.Builder
}

func (*Small) ownA() {}
func (*Small) ownB() {}
func (*Small) ownC() {}
func (*Small) ownD() {}
func (*Small) ownE() {}
func (*Small) ownF() {}
func (*Small) ownG() {}
func (*Small) ownH() {}
func (*Small) ownI() {}

// Large has one method, and those of Small.
type Large struct{ Small }

func (*Large) ownJ() {}
