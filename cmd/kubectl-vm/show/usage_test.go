// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/test/assert"
)

func TestBytesText(t *testing.T) {
	tests := map[string]map[float64]string{
		"4G":  {0: "0", 999: "999", 1000: "1.00k", 12_345_678: "12.3M", 999_600_000: "1.00G", 4e9: "4.00G", 123.4e12: "123T", 5e18: "5000P"},
		"4Gi": {1024: "1.00Ki", 1 << 30: "1.00Gi", 1.5 * (1 << 20): "1.50Mi", 1000: "0.98Ki"},
	}
	for like, values := range tests {
		for bytes, want := range values {
			got := bytesText(bytes, resource.MustParse(like))
			assert.True(t, got == want, "%g beside %s is %s, want %s", bytes, like, got, want)
		}
	}
}
