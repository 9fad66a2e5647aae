"""Elementwise ops without a recipe, each with its reason.

Names are those of all overloads (``lgamma``) or of one (``remainder.Scalar_Tensor``).
"""

from __future__ import annotations

_GAMMA = "needs the gamma function and its relatives, which kernels do not have"
_BESSEL = "needs Bessel or Airy functions, which kernels do not have"
_ERROR = "needs the inverse or the scaled error function, which kernels do not have"
_POLYNOMIAL = "runs a recurrence as long as its degree, which data decides"
_BITS = "works on the bits of floats, which kernels compute with but do not take apart"
_COMPLEX = "makes or takes complex numbers, for which no kernels are generated"
_QUANTIZED = "simulates or uses quantized numbers, for which no kernels are generated"
_CHECKED = "raises an error where an input lies outside of 0 to 1, which a kernel cannot"
_DEVICE_ONLY = "runs on GPUs alone, where no recipe of it could be compared"

_NAMES = {
    _GAMMA: "digamma igamma igammac lgamma mvlgamma polygamma special_zeta",
    _BESSEL: """
        i0 special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_i0e special_i1 special_i1e special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0
    """,
    _ERROR: "erfinv special_erfcx special_log_ndtr special_ndtri",
    _POLYNOMIAL: """
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u
        special_chebyshev_polynomial_v special_chebyshev_polynomial_w
        special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
        special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
        special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
        special_shifted_chebyshev_polynomial_w
    """,
    _BITS: "frexp nextafter",
    _COMPLEX: "complex conj_physical polar real",
    _QUANTIZED: """
        _add_relu _fake_quantize_learnable_per_channel_affine
        _fake_quantize_learnable_per_channel_affine_backward
        _fake_quantize_learnable_per_tensor_affine
        _fake_quantize_learnable_per_tensor_affine_backward
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask
        quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize
    """,
    _CHECKED: "binary_cross_entropy binary_cross_entropy_backward",
    "writes each half of its result by a formula of its own": "glu_backward",
    _DEVICE_ONLY: "_masked_scale",
}

REASONS: dict[str, str] = {
    name: reason for reason, names in _NAMES.items() for name in names.split()
}
